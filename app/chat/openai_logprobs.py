"""Log-probabilities of an answer's tokens in OpenAI's shape.

They are the model's own: of its distribution before penalties, bias, grammar and temperature. Only
tokens of the shown text come: neither what ended the answer nor a part of a stop text, which waits
here as it does at the node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from app.chat.events import Delta
from engine.stopping import StopText
from engine.tokenizer import Tokenizer
from engine.types import SamplingParams

Entry = dict[str, Any]


class ShownLogprobs:
    """Takes the pieces of one answer in order; gives the entries that may be shown."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        choice: SamplingParams,
        stop: Sequence[str],
        model_end_ids: Collection[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._names = {token_id: text for text, token_id in tokenizer.special_tokens.items()}
        self._decoder = tokenizer.decoder()
        self._stops = StopText(stop)
        self._min_tokens = choice.min_tokens
        self._end_ids = frozenset(choice.stop_token_ids)
        if not choice.ignore_eos:
            self._end_ids |= frozenset(model_end_ids)
        self._tokens = 0
        # letters spelled, and letters that no stop text can take back
        self._spelled = 0
        self._free = 0
        # (letters up to the token's end, its entry)
        self._waiting: deque[tuple[int, Entry]] = deque()

    def take(self, piece: Delta) -> list[Entry]:
        for token_id, told in piece.logprobs:
            self._tokens += 1
            if token_id in self._end_ids:
                continue
            text = self._decoder.push((token_id,))
            entry = self._entry(token_id, told.logprob) | {
                "top_logprobs": [self._entry(*one) for one in told.top]
            }
            self._spelled += len(text)
            if piece.channel == "text":
                self._waiting.append((self._spelled, entry))
            looked_at = self._tokens > self._min_tokens
            self._free += len(self._stops.push(text)[0] if looked_at else text)
        return self._released()

    def rest(self) -> list[Entry]:
        """After the last piece: what waited for a stop text that never came."""
        if not self._stops.stopped:
            self._free = self._spelled
        return self._released()

    def _released(self) -> list[Entry]:
        shown: list[Entry] = []
        while self._waiting and self._waiting[0][0] <= self._free:
            shown.append(self._waiting.popleft()[1])
        return shown

    def _entry(self, token_id: int, logprob: float) -> Entry:
        known = self._tokenizer.token_bytes
        raw = known[token_id] if token_id < len(known) else b""
        if not raw:
            return {"token": self._names.get(token_id, ""), "logprob": logprob, "bytes": None}
        return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
