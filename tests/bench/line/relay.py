"""A token's way from a node to a client through the line's store, alone and beside others."""

from __future__ import annotations

import asyncio

from engine.bench.report import Row
from tests.bench.delivery import STREAM_SECONDS, Answer, ask, bench_at, first_tokens, measured

STREAMS = 8


async def rows() -> list[Row]:
    rows: list[Row] = []
    async with bench_at(1000) as bench:
        rows += await first_tokens(bench)
        answer, _ = await measured(bench, 1000)
        rows += [
            Row("1,000 tok/s: token on its way beyond the frame, p50", answer.beyond_frame_ms(50), "ms", 2, "lower"),
            Row("1,000 tok/s: token on its way beyond the frame, p99", answer.beyond_frame_ms(99), "ms", 10, "lower"),
        ]  # fmt: skip
    async with bench_at(5000) as bench:
        await ask(bench.client, 5000)
        answer, _ = await measured(bench, 5000)
        rows += [
            Row("1 stream at 5,000 tok/s: delivered / produced", _share([answer]), "ratio", 0.99, "higher"),
            Row("1 stream at 5,000 tok/s: beyond the frame, p99", answer.beyond_frame_ms(99), "ms", 10, "lower"),
        ]  # fmt: skip
    async with bench_at(600, how_many=STREAMS) as bench:
        await ask(bench.client, 600)
        _, percent = await measured(bench, 600)
        tokens = round(600 * STREAM_SECONDS)
        answers = await asyncio.gather(*(ask(bench.client, tokens) for _ in range(STREAMS)))
        rows += [
            Row(f"{STREAMS} streams at 600 tok/s: delivered / produced", _share(answers), "ratio", 0.98, "higher"),
            Row("1 stream at 600 tok/s: processor time of web and store", percent, "% of a core", 10, "lower"),
        ]  # fmt: skip
    return rows


def _share(answers: list[Answer]) -> float:
    produced = sum(answer.produced_tps for answer in answers)
    return sum(answer.delivered_tps for answer in answers) / produced
