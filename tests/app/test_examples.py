"""The Python examples of the documents, run as they stand: the demo model, a real port, the official
client. Only the address and the key are put in."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from app.node.run import pool_name
from tests.app.served import ROOT, ready, serving

pytestmark = pytest.mark.slow

# what each example prints beside the answer
FIGURES = ("average", "prefill")


@pytest.fixture
async def url(tmp_path: Path) -> AsyncGenerator[str]:
    """`make run` as far as Baton is concerned."""
    async with serving(tmp_path, "--kind", "local", "--threads", "1") as served:
        await ready(served)
        assert served.url
        yield served.url


async def make_key(url: str) -> str:
    person = {"name": "Eva", "password": "correct horse battery"}
    wish = {"name": "k", "kind": "secret", "origins": []}
    async with httpx.AsyncClient(base_url=url, headers={"Origin": url}) as client:
        assert (await client.post("/api/sign-up", json=person)).status_code == 201
        return (await client.post("/api/keys", json=wish)).json()["secret"]


def examples(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text("utf-8"), re.DOTALL)


def run(example: str, url: str, key: str) -> subprocess.CompletedProcess[str]:
    code = example.replace("http://127.0.0.1:8000", url).replace("sk-baton-...", key)
    assert code != example
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


async def test_the_examples_of_the_documents_run_as_they_stand(url: str):
    key = await make_key(url)
    for document in ("README.md", "docs/api.md"):
        found = examples(document)
        assert found, document
        for example in found:
            done = await asyncio.to_thread(run, example, url, key)
            assert done.returncode == 0, f"{document}: {done.stderr}"
            assert all(word in done.stdout for word in FIGURES), done.stdout
    with OpenAI(base_url=f"{url}/v1", api_key=key) as client:
        listed = [model.id for model in await asyncio.to_thread(client.models.list)]
    assert listed == ["SmolLM2-135M-Instruct"]


@pytest.mark.parametrize(
    ("model", "pool"),
    [
        ("SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"),
        ("Qwen3_0.6B:q4", "Qwen3_0.6B:q4"),
        ("My model (new)", "My-model-new"),
        ("{p:x} ü", "p:x"),
        ("***", "model"),
    ],
)
def test_a_line_is_called_as_its_model(model: str, pool: str):
    assert pool_name(model) == pool
