"""A client that reads one answer after the other until it is ended, for benchmarks.

    BENCH_KEY=... python -m tests.bench.listener URL

Prints a line when the first token has come.
"""

from __future__ import annotations

import os
import sys

import httpx

from tests.bench.stamped_node import MODEL

ANSWER_TOKENS = 50_000


def listen(url: str, key: str) -> None:
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": "go"}],
        "max_tokens": ANSWER_TOKENS, "stream": True,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {key}"}
    told = False
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        while True:
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                for line in response.iter_lines():
                    if not told and '"content"' in line:
                        told = True
                        print("reading", flush=True)


if __name__ == "__main__":
    listen(sys.argv[1], os.environ["BENCH_KEY"])
