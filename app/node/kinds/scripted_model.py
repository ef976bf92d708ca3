"""The model that the scripted kind pretends to be: its texts, its tokenizer, its card.

The answer depends on the prompt alone, so a test can say beforehand what must arrive.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from functools import cache

from tokenizers import Tokenizer as BpeTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from engine.tokenizer import Tokenizer
from engine.types import ModelCard, SamplingDefaults

PARAGRAPHS = (
    "A line is a promise: whoever came first is served first, and nobody has to stand and watch. "
    "The node reads your whole conversation once, then writes one token after another.",
    "Three things decide how fast an answer comes:\n\n"
    "1. **Bandwidth** - every weight is read once for each token.\n"
    "2. **Latency** - hundreds of small kernels wait for each other.\n"
    "3. **Drafts** - a good guess is checked for the price of one step.",
    "```python\ndef tokens_per_second(tokens: int, seconds: float) -> float:\n"
    '    """Count tokens, never chunks."""\n'
    "    return tokens / seconds if seconds > 0 else 0.0\n```",
    "同一时间只有一个人使用整块显卡，所以每个词都尽可能快地出现。",
    "| phase | limit |\n|---|---|\n| prefill | arithmetic |\n| decode | memory |",
    "Some text is awkward on purpose: naïve café, `<b>not bold</b>`, 1 < 2 && 3 > 2, "
    "[a link](https://example.com), the formula $e^{i\\pi} + 1 = 0$, and a smile 🙂.",
)

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# the longest token in letters of the byte alphabet; about what real vocabularies average
_TOKEN_LETTERS = 6


@cache
def tokenizer_json() -> str:
    """A small byte-level BPE: all 256 bytes, and the beginnings of the words in PARAGRAPHS.

    The merges are written down instead of trained, so that every node has the same ones.
    """
    splitter = ByteLevel(add_prefix_space=False)
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for paragraph in PARAGRAPHS:
        for word, _ in splitter.pre_tokenize_str(paragraph):
            for end in range(1, min(len(word), _TOKEN_LETTERS)):
                token = word[: end + 1]
                if token not in vocabulary:
                    vocabulary[token] = len(vocabulary)
                    merges.append((word[:end], word[end]))
    tokenizer = BpeTokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer.to_str()


@cache
def special_tokens() -> dict[str, int]:
    size = len(json.loads(tokenizer_json())["model"]["vocab"])
    return {text: size + index for index, text in enumerate(("<|im_start|>", "<|im_end|>"))}


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(tokenizer_json(), special_tokens())


def end_token() -> int:
    return special_tokens()["<|im_end|>"]


def card(name: str, context_tokens: int, template: str = TEMPLATE) -> ModelCard:
    return ModelCard(
        name=name,
        architecture="scripted",
        context_tokens=context_tokens,
        tokenizer_json=tokenizer_json(),
        special_tokens=special_tokens(),
        chat_template=template,
        bos_token=None,
        eos_token="<|im_end|>",
        add_bos=False,
        stop_token_ids=(end_token(),),
        defaults=SamplingDefaults(),
        numerics="scripted",
    )


def digest(prompt_ids: Sequence[int]) -> int:
    """A number that names this prompt, the same on every machine."""
    raw = b"".join(token.to_bytes(4, "little") for token in prompt_ids)
    return int.from_bytes(hashlib.blake2b(raw, digest_size=4).digest(), "big")


def answer_ids(prompt_ids: Sequence[int], text: str | None, tokens: int) -> Iterator[int]:
    """The answer to this prompt, ended by the end token.

    `text` as it is; without one, paragraphs behind a line that names the prompt, so many that
    `tokens` tokens come before the end.
    """
    if text is not None:
        yield from tokenizer().encode(text)
    else:
        yield from itertools.islice(_endless_ids(digest(prompt_ids)), tokens)
    yield end_token()


def _endless_ids(number: int) -> Iterator[int]:
    yield from tokenizer().encode(f"Answer {number:08x}.")
    for index in itertools.count(number % len(PARAGRAPHS)):
        yield from tokenizer().encode("\n\n" + PARAGRAPHS[index % len(PARAGRAPHS)])
