"""What lies in a generation's stream. Frozen.

The data of each kind, as JSON (times: ms since the request reached the node, on its clock):

reading  {"done", "total", "cached", "t_ms"}    tokens read so far: the prompt and, where another
          node's answer is continued, its tokens. The first of such a node also has "exact": whether
          the text will certainly be the one that the other node would have written
delta    {"text", "channel": "text" | "reasoning" | "tool_call", "n": tokens in this frame, "ids": their ids,
          "t_ms": of its last token, "steps": [[t_ms, n], ...]}; where the request asks for them
          also "tail": [[channel, text], ...] of what follows in other channels (calls of tools as in
          `engine.types.Piece`), "spelled": the frame as the model wrote it, where it is another than
          "text"; "logprobs": [[logprob, [[id, logprob], ...likeliest first]], ...one for each id]
done     {"finish_reason": "stop" | "length" | "cancelled", "stop_reason": null | "slice_ended" | ...,
          "usage": {prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens,
                    resumed_tokens: of the completion tokens, those that other nodes made},
          "timing": {queue_ms, prefill_ms, decode_ms, total_ms},
          "tps": {peak, average, e2e}, "accepted": {mean, min, max}}
failed   {"code", "message": a sentence for a person, "retry": whether trying again helps}

Exactly one `done` or `failed` ends a stream, and it is the last entry. Times, `timing`, `tps` and
`accepted` are those of the node that wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

EntryKind = Literal["reading", "delta", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry read from a stream. `id` is its position, `<ms on the store's clock>-<n>`."""

    id: str
    kind: EntryKind
    data: Mapping[str, Any]

    @property
    def is_last(self) -> bool:
        return self.kind in ("done", "failed")

    @property
    def store_ms(self) -> int:
        """When the store took this entry, on the store's clock."""
        return int(self.id.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append tells the node."""

    # set: somebody asked to stop this generation, for this reason
    cancel: str | None


@dataclass(frozen=True, slots=True)
class Record:
    """All that is left of an ended generation, for SQL."""

    generation: str
    seat: str
    node: str | None
    queued_at_ms: int
    ended_at_ms: int
    # the whole answer and the whole reasoning, as far as they were written
    text: str
    reasoning: str
    # the last entry
    last: Entry
    # where it went on at another node last: tokens before it, and whether the text is exact
    moved: tuple[int, bool] | None = None
