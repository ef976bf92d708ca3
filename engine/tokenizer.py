"""Text to token ids and back, for byte-level and SentencePiece-like BPE. Free of torch.

Ordinary text never becomes a control token, whatever it spells. Only `encode_with_specials`, which
the chat template uses, produces them. Decoding works on bytes, because a token may hold a part of
a character only.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os.path import commonprefix

import tokenizers

from engine import sentencepiece
from engine.parsers import SPELLED_MARKS
from engine.types import ModelCard, ModelFileError
from engine.vocabulary import vocabulary_from_gguf

_SURROGATES = re.compile("[\ud800-\udfff]")


def _letters_to_bytes() -> dict[int, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the rest for U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    table = {byte: byte for byte in plain}
    table.update({0x100 + index: byte for index, byte in enumerate(others)})
    return table


_LETTERS_TO_BYTES = _letters_to_bytes()


def _token_bytes(text: str) -> bytes:
    try:
        return text.translate(_LETTERS_TO_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        # a token that was added to the vocabulary as plain text
        return text.encode("utf-8", "replace")


def _any_of(texts: Sequence[str]) -> str:
    """A pattern for the longest of these texts.

    What they share is tried once: Gemma has 6,249 control tokens, and each of them tried wherever
    a user writes `<u` would take seconds.
    """
    if not texts:
        return "(?!)"
    shared = commonprefix(list(texts))
    branches: dict[str, list[str]] = {}
    for text in texts:
        branches.setdefault(text[len(shared) :][:1], []).append(text[len(shared) :])
    ends_here = branches.pop("", None) is not None
    if not branches:
        return re.escape(shared)
    longer = "|".join(_any_of(rest) for rest in branches.values())
    return f"{re.escape(shared)}(?:{longer}){'?' if ends_here else ''}"


class IncrementalDecoder:
    """Turns the ids of one answer into text as they come; linear in their number.

    A character whose bytes are incomplete waits for the next ids, at most three bytes. Bytes that
    are no UTF-8 become U+FFFD at once (Unicode's "maximal subpart" rule). Control tokens print
    nothing, but for the tags of thoughts and calls (engine/parsers.py).
    """

    def __init__(self, table: Sequence[bytes], prompt_ids: Sequence[int] = ()) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        # A prompt of ids may end inside a character; the answer then completes it. What is
        # pending after it depends on its last three bytes alone.
        tail = b""
        for token_id in reversed(prompt_ids):
            tail = self._bytes_of((token_id,)) + tail
            if len(tail) >= 3:
                break
        self._utf8.decode(tail)

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids complete; may be empty."""
        return self._utf8.decode(self._bytes_of(ids))

    def flush(self) -> str:
        """The end: U+FFFD if a character stayed incomplete, else nothing."""
        return self._utf8.decode(b"", final=True)

    def _bytes_of(self, ids: Iterable[int]) -> bytes:
        # a model's head may be padded beyond its vocabulary; such ids have no text
        table = self._table
        return b"".join([table[index] for index in ids if index < len(table)])


class Tokenizer:
    """One model's vocabulary. Safe to share between threads."""

    def __init__(self, tokenizer_json: str, special_tokens: Mapping[str, int]) -> None:
        """Raises ModelFileError when the document is not one that `tokenizers` can read."""
        self._json = tokenizer_json
        self.special_tokens = dict(special_tokens)
        try:
            self._bpe = tokenizers.Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exception
            raise ModelFileError(
                f"The model's tokenizer cannot be read ({str(error)[:200]}). "
                "Download the model file again, or convert it again."
            ) from None
        # none of one letter, which nothing could tell from text
        texts = [text for text in self.special_tokens if len(text) > 1]
        try:
            self.special_pattern = re.compile(_any_of(texts))
        except RecursionError:
            raise ModelFileError(
                "The model's control tokens begin with one another too often; the file is damaged. "
                "Download it again."
            ) from None

    @classmethod
    def from_gguf_metadata(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Raises ModelFileError for vocabularies of an unknown kind."""
        vocabulary = vocabulary_from_gguf(metadata)
        return cls(vocabulary.tokenizer_json, vocabulary.special_tokens)

    @classmethod
    def from_card(cls, card: ModelCard) -> Tokenizer:
        """The same tokenizer on the web side. Raises ModelFileError."""
        return cls(card.tokenizer_json, card.special_tokens)

    def to_json(self) -> str:
        """The ordinary tokens, as `ModelCard.tokenizer_json` carries them."""
        return self._json

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self._table)

    def encode(self, text: str) -> list[int]:
        """Ordinary text only: what spells a control token becomes ordinary pieces."""
        return self._encode_all([text])[0]

    def encode_with_specials(self, rendered: str, mark: str) -> list[int]:
        """Encode a rendered template: control tokens count, except where `mark` breaks them.

        `mark` is a string that occurs in nothing the user wrote; it disappears. Pass "" where
        there is none.
        """
        texts: list[str] = []
        specials: list[int] = []
        position = 0
        for found in self.special_pattern.finditer(rendered):
            texts.append(rendered[position : found.start()])
            specials.append(self.special_tokens[found.group()])
            position = found.end()
        texts.append(rendered[position:])
        if mark:
            texts = [text.replace(mark, "") for text in texts]
        ordinary = self._encode_all(texts)
        ids = ordinary[0]
        for special, behind in zip(specials, ordinary[1:], strict=True):
            ids.append(special)
            ids += behind
        return ids

    def _encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """In one batch: unlike `encode`, it lets other threads run Python meanwhile."""
        # JSON can carry half of a surrogate pair, UTF-8 cannot
        clean = [_SURROGATES.sub("\ufffd", text) for text in texts]
        found = self._bpe.encode_batch_fast(clean, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def decode(self, ids: Iterable[int]) -> str:
        """The whole text of these ids; control tokens print nothing, tags of thoughts and calls do."""
        decoder = self.decoder()
        return decoder.push(ids) + decoder.flush()

    def decoder(self, prompt_ids: Sequence[int] = ()) -> IncrementalDecoder:
        """A decoder for an answer to `prompt_ids`."""
        return IncrementalDecoder(self._spelled, prompt_ids)

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """Bytes by id; empty for control tokens and for ids without a token."""
        return self._table

    @cached_property
    def _spelled(self) -> list[bytes]:
        """What an answer shows of each id."""
        table = list(self._table)
        for text, index in self.special_tokens.items():
            if text in SPELLED_MARKS:
                table[index] = text.encode()
        return table

    @cached_property
    def _table(self) -> list[bytes]:
        """Bytes by id; empty for control tokens and for ids without a token."""
        ordinary = self._bpe.get_vocab(with_added_tokens=True)
        largest = max([*ordinary.values(), *self.special_tokens.values()], default=-1)
        table = [b""] * (largest + 1)
        bytes_of = sentencepiece.token_bytes if self._is_sentencepiece else _token_bytes
        for text, index in ordinary.items():
            table[index] = bytes_of(text)
        # these stand in the vocabulary as plain text, not in the byte alphabet
        for index, added in self._bpe.get_added_tokens_decoder().items():
            table[index] = added.content.encode()
        for text, index in self.special_tokens.items():
            if text in ordinary:
                table[index] = text.encode()
        return table

    @property
    def _is_sentencepiece(self) -> bool:
        """Vocabularies with a token for each byte, in place of a letter for each."""
        return getattr(self._bpe.model, "byte_fallback", False) is True
