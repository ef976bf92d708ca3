"""What goes into the engine and what comes out. Frozen, and free of torch.

A generation is a sequence of events: `Reading` (at least once), `Step` (any number), and exactly
one `Finished`, unless an `EngineError` ends it. All times are milliseconds since the request
reached the node (`GenerateRequest.arrived_s`), on the node's own monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]
Channel = Literal["text", "reasoning", "tool_call"]
# a part of an answer: its channel and its text; that of "tool_call" is one line of JSON for each
# call, {"name", "arguments": a JSON object as text}
Piece = tuple[Channel, str]


class EngineError(Exception):
    """Something the engine cannot do. `str(error)` is a sentence that says what to do about it."""


class ModelFileError(EngineError):
    """The checkpoint is missing, damaged, or of a kind the engine does not know."""


class PromptTooLongError(EngineError):
    """Prompt and answer do not fit into the model's context."""


class OutOfMemoryError(EngineError):
    """The device has no room for the weights or the cache."""


class GrammarError(EngineError):
    """A grammar, schema or expression that an answer cannot be held to."""


GrammarKind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the answer's text must be; see `engine/grammar.py`."""

    kind: GrammarKind
    # a JSON schema as JSON, a regular expression, or a grammar in Lark's notation
    source: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; see `engine/sampling.py` for the rule."""

    # 0 is greedy: the largest logit, no noise
    temperature: float = 1.0
    # keep the smallest set of tokens whose probabilities reach this sum; 1 keeps all
    top_p: float = 1.0
    # keep this many tokens before top_p looks; 0 keeps all
    top_k: int = 0
    # together with the absolute position and the token id it fixes the noise
    seed: int = 0
    # keep tokens with at least this share of the likeliest one's probability; 0 keeps all
    min_p: float = 0.0
    # divides positive and multiplies negative logits of ids in prompt and answer; 1: no penalty
    repetition_penalty: float = 1.0
    # taken off the logits of ids in the answer: once, and for each time
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    # (token id, what is added to its logit), each id once
    logit_bias: tuple[tuple[int, float], ...] = ()
    # tokens that end the answer beside the model's own, which do not where `ignore_eos` is set
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    # nothing ends the answer before it has so many tokens; a complete grammar does
    min_tokens: int = 0
    grammar: Grammar | None = None
    # tell of each token its log-probability, and those of the n likeliest; None: tell nothing.
    # They are the model's own: log-softmax of its logits, before all steps of the rule.
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One turn's work for the engine."""

    prompt_ids: tuple[int, ...]
    # most tokens to write; the context may end an answer earlier (finish reason "length")
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    # texts that end the answer; neither they nor a part of them is ever shown
    stop: tuple[str, ...] = ()
    # The answer's first tokens, made by another node: this one goes on behind them. They count in
    # `max_tokens` and in `Usage.completion_tokens`. Of their text nothing comes again, and what
    # they leave held back (half a character, a possible stop text) comes as soon as it is free: the
    # text of the steps that made them and the text that comes now are together the whole answer.
    resume_ids: tuple[int, ...] = ()
    # time.perf_counter() when the request reached the node
    arrived_s: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True, slots=True)
class Reading:
    """Progress of the reading: before the first chunk, after each one, and after each token of
    `resume_ids`."""

    # tokens in the cache now, those reused from an earlier turn included
    done_tokens: int
    # tokens to read: the prompt, and behind it `resume_ids`
    total_tokens: int
    # of these, how many were already in the cache when the request came
    cached_tokens: int
    t_ms: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the model thought of one token: natural logarithms, of its own distribution."""

    logprob: float
    # (token id, logprob), the likeliest first; among equals the lower id
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: 1..k tokens and the text that they completed."""

    token_ids: tuple[int, ...]
    # may be empty while a character or a possible stop text is incomplete
    text: str
    t_ms: float
    channel: Channel = "text"
    # one for each token where the request asks for them, else none
    logprobs: tuple[TokenLogprobs, ...] = ()
    # Of a divided answer (`app/node/divider.py`): what the step completed behind `text` in other
    # channels, and the text that the model wrote, with all its tags.
    tail: tuple[Piece, ...] = ()
    spelled: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    # every token the model made, the one that ended the answer included
    completion_tokens: int
    reasoning_tokens: int = 0
    # of the completion tokens, those that were in `resume_ids`
    resumed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Phases on the node's clock, in milliseconds. Time in the line is not the engine's.

    Of a continued answer only what happened here: its "first token" is the first new one.
    """

    # request reached the node -> first token left the engine (this is TTFT)
    prefill_ms: float
    # first token -> last token
    decode_ms: float
    # request reached the node -> last token
    total_ms: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second by the definitions of `engine/metrics.py`.

    Of a continued answer only its new tokens count: those of `resume_ids` were made elsewhere.
    """

    peak: float
    average: float
    e2e: float


@dataclass(frozen=True, slots=True)
class Accepted:
    """Tokens per step: 1 everywhere without speculation. Steps of this node only."""

    mean: float
    min: int
    max: int
    # of the time between first and last token, the part that went into guessing; 0..1
    drafting_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The one last event of a generation."""

    finish_reason: FinishReason
    usage: Usage
    timing: Timing
    speed: Speed
    accepted: Accepted
    # text that was held back and belongs to the answer after all
    text: str = ""


Event = Reading | Step | Finished


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What the checkpoint's authors recommend; used where a request says nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class ModelCard:
    """All that the web side needs to know of a pool's model to turn messages into token ids.

    A node publishes it when it registers. It holds no weights; see `engine/card.py` for how it
    travels as bytes.
    """

    # public name: what `/v1/models` lists and a request names
    name: str
    architecture: str
    # most positions of prompt and answer together
    context_tokens: int
    # the vocabulary and its merges as a `tokenizers` JSON document (ordinary tokens only)
    tokenizer_json: str
    # control tokens by their text; only the template may produce them, never a user's words
    special_tokens: Mapping[str, int]
    # Jinja source of the chat template; None for a base model
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    # put `bos_token` in front of every prompt that the template does not already begin with it
    add_bos: bool
    # tokens that end an answer
    stop_token_ids: tuple[int, ...]
    defaults: SamplingDefaults
    # equal labels promise equal texts: weights hash, kernel level, hardware
    numerics: str
