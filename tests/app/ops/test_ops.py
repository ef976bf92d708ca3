from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from app.main import create_app
from app.ops.background import keep_running, running
from app.settings import Settings
from tests.app.serving import scripted_node, serving
from tests.waiting import until


async def get(path: str, settings: Settings) -> httpx.Response:
    transport = httpx.ASGITransport(create_app(settings))
    async with httpx.AsyncClient(transport=transport, base_url="http://baton.test") as client:
        return await client.get(path)


async def test_static_files_are_asked_for_again_after_an_upgrade(tmp_path: Path):
    answer = await get("/static/js/stream.js", Settings(data_folder=tmp_path))
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_every_answer_has_an_id_and_unknown_addresses_the_error_shape(tmp_path: Path):
    answer = await get("/nowhere", Settings(data_folder=tmp_path))
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    assert len(answer.headers["x-request-id"]) == 32


async def test_readiness_and_metrics_follow_the_nodes(valkey_url: str, tmp_path: Path):
    async with serving(valkey_url, tmp_path) as web:
        client = await web.client()
        assert (await client.get("/healthz")).status_code == 200
        before = await client.get("/readyz")
        assert (before.status_code, before.json()) == (503, {"status": "no node"})
        async with scripted_node(valkey_url):
            assert (await client.get("/readyz")).status_code == 200
            metrics = (await client.get("/metrics")).text
            assert "baton_store_up 1.0" in metrics
            assert 'baton_nodes{pool="scripted"} 1.0' in metrics


async def test_without_a_store_the_process_is_alive_but_not_ready(tmp_path: Path):
    async with serving(f"unix://{tmp_path}/nothing", tmp_path) as web:
        client = await web.client()
        assert (await client.get("/healthz")).status_code == 200
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"status": "no store"})
        assert "baton_store_up 0.0" in (await client.get("/metrics")).text


async def test_a_background_loop_that_breaks_is_run_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.ops.background.RESTART_SECONDS", 0.0)
    runs = 0

    async def breaks_once() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("broken")
        await asyncio.Event().wait()

    async with running({"fragile": breaks_once}):
        await until(lambda: runs == 2, what="a second run")


async def test_a_cancelled_loop_is_not_run_again():
    started = asyncio.Event()

    async def loop() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_running("calm", loop))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
