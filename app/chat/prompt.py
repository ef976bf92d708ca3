"""From a model's name and chat messages to a node's work: pool, card, token ids, sampling.

All of it happens before the line is joined, so a prompt that is too long or a list of messages
that the model's template refuses is answered at once, with exact numbers.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from app.errors import (
    AppError,
    InvalidRequestError,
    ModelNotFoundError,
    PoolEmptyError,
    PromptTooLongError,
)
from app.line.line import Line
from app.line.types import PoolView
from app.work import Parsing, Work
from engine import grammar
from engine.card import card_from_bytes
from engine.chat_template import TemplateRefusedError, prompt_ids, template_stop_texts
from engine.parsers import THINK, THINK_END, opens_reasoning
from engine.tokenizer import Tokenizer
from engine.tool_calls import call_format, read_schemas
from engine.types import GrammarError, ModelCard, ModelFileError, SamplingParams

# A card (megabytes) is fetched again after this long: a pool's model changes with its nodes only.
CARD_SECONDS = 10.0
# Below this many characters a prompt is tokenised faster than a thread is woken.
INLINE_CHARACTERS = 4_000
LONG_PROMPTS_AT_ONCE = 2
# Seeds stay exact in JavaScript.
SEED_BITS = 53
# enough of a prompt's end to hold a tag of many tokens
PROMPT_END_TOKENS = 16
LEAST_TEMPERATURE = 1e-4
# the field of a request that asks for each kind of grammar
_GRAMMARS = {"json_schema": "response_format", "regex": "regex", "lark": "grammar"}


class ModelUnreadableError(AppError):
    code = "model_unreadable"
    status = 503
    message = "This model's description cannot be read. Its nodes may run another version."


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """What a request says about its answer; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    # that the model may call, as the API takes them
    tools: tuple[Mapping[str, Any], ...] = ()
    # all else that it asks of the choice; its temperature, top_p, top_k and seed do not count
    choice: SamplingParams = SamplingParams()


@dataclass(frozen=True, slots=True)
class Model:
    """A card with its tokenizer, ready for use."""

    card: ModelCard
    tokenizer: Tokenizer

    @classmethod
    def from_bytes(cls, raw: bytes) -> Model:
        card = card_from_bytes(raw)
        return cls(card, Tokenizer.from_card(card))


class _Models:
    """The models of one process's line, by pool; a card that did not change is read once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, bytes, Model]] = {}
        self._lock = asyncio.Lock()
        # long prompts tokenised at once: more would fill the machine's threads, and its memory
        self.long_prompts = asyncio.Semaphore(LONG_PROMPTS_AT_ONCE)

    def is_known(self, pool: str) -> bool:
        return pool in self._known

    async def get(self, line: Line, pool: str) -> Model:
        """Raises PoolEmptyError before a node published a card, ModelUnreadableError."""
        async with self._lock:
            known = self._known.get(pool)
            if known and time.monotonic() - known[0] < CARD_SECONDS:
                return known[2]
            raw = await line.card(pool)
            if raw is None:
                raise PoolEmptyError
            if known and known[1] == raw:
                model = known[2]
            else:
                try:
                    model = await asyncio.to_thread(Model.from_bytes, raw)
                except ModelFileError as error:
                    raise ModelUnreadableError(str(error)) from error
            self._known[pool] = (time.monotonic(), raw, model)
            return model


_MODELS: WeakKeyDictionary[Line, _Models] = WeakKeyDictionary()


async def model_of(line: Line, pool: str) -> Model:
    return await _models(line).get(line, pool)


def _models(line: Line) -> _Models:
    return _MODELS.setdefault(line, _Models())


async def resolve_pool(line: Line, name: str | None) -> str:
    """The pool that serves model `name`; None means the first one with nodes.

    Raises ModelNotFoundError, and PoolEmptyError where there is no model at all, or where there was
    this one: a store that lost its memory knows no pool before the nodes have come back.
    """
    pools = await line.pools()
    if name is None:
        return _first(pools)
    if not any(pool.name == name for pool in pools):
        if not pools or _models(line).is_known(name):
            raise PoolEmptyError(retry_after_seconds=2)
        raise ModelNotFoundError(
            f"There is no model {name[:100]!r} here. GET /v1/models lists the ones there are.",
            param="model",
        )
    return name


def _first(pools: Sequence[PoolView]) -> str:
    if not pools:
        raise PoolEmptyError
    return min(pools, key=lambda pool: (pool.nodes == 0, pool.name)).name


async def make_work(
    line: Line,
    pool: str,
    messages: Sequence[Mapping[str, Any]],
    settings: AnswerSettings,
    most: int,
) -> Work:
    """The node's work for these messages; `most` is the answer's length where none is asked for.

    Raises PromptTooLongError with both numbers, InvalidRequestError for messages that the model's
    template refuses, and for a choice that this model cannot make.
    """
    model = await model_of(line, pool)
    await _check_choice(line, model, settings.choice)
    _check_tools(model.card, settings.tools)
    ids = await _ids(line, model, messages, settings.tools)
    max_tokens = fitting_tokens(len(ids), settings.max_tokens, model.card.context_tokens, most)
    if settings.choice.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"`min_tokens` asks for {settings.choice.min_tokens} tokens, and the answer may have "
            f"{max_tokens}.",
            param="min_tokens",
        )
    return Work(
        model=model.card.name,
        prompt_ids=tuple(ids),
        max_tokens=max_tokens,
        sampling=_sampling(settings, model.card),
        stop=(*settings.stop, *template_stop_texts(model.card)),
        parsing=_parsing(model, ids, settings),
    )


def _check_tools(card: ModelCard, tools: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidRequestError where the model has no way to be told of tools, or to call them."""
    offered = card.chat_template is not None and "tools" in card.chat_template
    if tools and (not offered or call_format(card.architecture, card.chat_template or "") is None):
        raise InvalidRequestError(
            'This model cannot call tools. Leave `tools` out, or send `tool_choice`: "none".',
            param="tools",
        )


def _parsing(model: Model, ids: Sequence[int], settings: AnswerSettings) -> Parsing | None:
    """How the answer is divided; None for a model without thoughts that was offered no tools."""
    card = model.card
    calls = call_format(card.architecture, card.chat_template or "") if settings.tools else None
    thinks = any(
        tag in card.special_tokens or tag in (card.chat_template or "")
        for tag in (THINK, THINK_END)
    )
    if not thinks and calls is None:
        return None
    # the few tokens behind an opening tag are white space
    opened = thinks and opens_reasoning(model.tokenizer.decode(ids[-PROMPT_END_TOKENS:]))
    # a grammar lets thoughts be written only where both tags are tokens (engine/chooser.py)
    if settings.choice.grammar is not None and THINK_END not in card.special_tokens:
        opened = thinks = False
    return Parsing(thinks, opened, calls.name if calls else None, read_schemas(settings.tools))


async def _check_choice(line: Line, model: Model, choice: SamplingParams) -> None:
    """Raises InvalidRequestError for tokens that the model does not have, or a bad grammar."""
    named = {
        "logit_bias": [token_id for token_id, _ in choice.logit_bias],
        "stop_token_ids": choice.stop_token_ids,
    }
    vocabulary = model.tokenizer.vocab_size
    for param, ids in named.items():
        if ids and max(ids) >= vocabulary:
            raise InvalidRequestError(
                f"`{param}` names token {max(ids)}; this model has {vocabulary}.", param=param
            )
    if choice.grammar is not None:
        try:
            async with _models(line).long_prompts:
                await asyncio.to_thread(grammar.check, choice.grammar)
        except GrammarError as error:
            raise InvalidRequestError(str(error), param=_GRAMMARS[choice.grammar.kind]) from error


async def _ids(
    line: Line,
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> list[int]:
    try:
        if is_short([*messages, *tools]):
            return prompt_ids(model.tokenizer, model.card, messages, tools=tools)
        async with _models(line).long_prompts:
            return await asyncio.to_thread(
                prompt_ids, model.tokenizer, model.card, messages, tools=tools
            )
    except TemplateRefusedError as error:
        raise InvalidRequestError(str(error), param="messages") from error
    except ModelFileError as error:
        raise ModelUnreadableError(str(error)) from error


def is_short(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all that a template may print (names, tool calls, ...) is within the inline limit."""
    left = INLINE_CHARACTERS
    rest: list[Any] = [messages]
    while rest and left >= 0:
        value = rest.pop()
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, Mapping):
            rest += [*value.keys(), *value.values()]
        elif isinstance(value, Sequence):
            rest += value
        # also what is no text, and the words of the template around a message
        left -= 1
    return left >= 0


def fitting_tokens(prompt: int, asked: int | None, context: int, most: int) -> int:
    """How long the answer may become. Raises PromptTooLongError when not one token fits."""
    room = context - prompt
    if room < 1:
        raise PromptTooLongError(
            f"The conversation has {prompt} tokens, and this model reads at most {context - 1} "
            "before it answers. Shorten it, or start a new one.",
            param="messages",
        )
    return min(asked or most, room)


def _sampling(settings: AnswerSettings, card: ModelCard) -> SamplingParams:
    defaults = card.defaults
    temperature = _or(settings.temperature, defaults.temperature)
    return replace(
        settings.choice,
        # logits divided by less would overflow; the largest wins there anyway
        temperature=temperature if temperature >= LEAST_TEMPERATURE else 0.0,
        top_p=_or(settings.top_p, defaults.top_p),
        top_k=int(_or(settings.top_k, defaults.top_k)),
        seed=secrets.randbits(SEED_BITS) if settings.seed is None else settings.seed,
    )


def _or(asked: float | None, default: float) -> float:
    return default if asked is None else asked
