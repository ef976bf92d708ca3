from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from structlog.testing import capture_logs

from app.chat.openai_request import CompletionIn
from app.errors import from_validation
from app.main import create_app
from app.ops.background import keep_running, running
from app.settings import Settings
from tests.app.accounts.site import code
from tests.app.embed.site import SITE, make_site
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


HEADERS = ("x-request-id", "content-security-policy", "x-content-type-options")


@pytest.mark.parametrize("has_length", [True, False])
async def test_a_body_too_large_is_refused_like_everything_else(
    valkey_url: str, tmp_path: Path, has_length: bool
):
    async with serving(valkey_url, tmp_path, max_body_bytes=2000) as web:
        member = await web.member()

        async def pieces() -> AsyncGenerator[bytes]:
            for _ in range(3):
                yield b" " * 1000

        headers = {"Content-Type": "application/json"}
        content = b" " * 3000 if has_length else pieces()
        answer = await member.client.post("/api/chat", content=content, headers=headers)
        assert code(answer) == (413, "body_too_large")
        assert all(name in answer.headers for name in HEADERS)


async def test_a_body_too_large_can_be_read_about_by_a_bound_site(valkey_url: str, tmp_path: Path):
    async with serving(valkey_url, tmp_path, max_body_bytes=2000) as web:
        site = await make_site(web)
        client = await web.client(Origin=SITE, Authorization=f"Bearer {site['secret']}")
        answer = await client.post("/v1/chat/completions", content=b" " * 3000)
        assert code(answer) == (413, "body_too_large")
        assert answer.headers["access-control-allow-origin"] == SITE


async def test_an_unforeseen_fault_has_an_id_headers_and_a_safe_line_in_the_log(tmp_path: Path):
    app = create_app(Settings(data_folder=tmp_path))

    @app.get("/broken/{name}")
    async def broken(name: str) -> None:
        raise RuntimeError("nobody foresaw it")

    transport = httpx.ASGITransport(app)
    path = "/broken/%1b%5B2J" + "x" * 500
    async with httpx.AsyncClient(transport=transport, base_url="http://baton.test") as client:
        with capture_logs() as lines:
            answer = await client.get(path + "?token=secret")
    assert code(answer) == (500, "internal")
    assert all(name in answer.headers for name in HEADERS)
    assert {line["event"] for line in lines} == {"unexpected fault", "request"}
    for line in lines:
        assert line["path"].casefold() == path[:200].casefold()


@pytest.mark.parametrize("path", ["/api/nothing", "/v1/models"])
async def test_answers_of_the_api_are_not_stored_by_caches(tmp_path: Path, path: str):
    answer = await get(path, Settings(data_folder=tmp_path))
    assert answer.headers["cache-control"] == "no-store"


async def test_what_the_api_answers_well_is_not_stored_either(valkey_url: str, tmp_path: Path):
    async with serving(valkey_url, tmp_path) as web:
        member = await web.member()
        for path in ("/api/conversations", "/api/line", "/api/me"):
            assert (await member.client.get(path)).headers["cache-control"] == "no-store"


async def test_heads_are_answered_and_a_wrong_method_hears_the_right_ones(
    valkey_url: str, tmp_path: Path
):
    async with serving(valkey_url, tmp_path) as web:
        client = await web.client(Origin=web.url)
        for path in ("/", "/healthz", "/embed.js"):
            answer = await client.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
        assert (await client.head("/readyz")).status_code == 503
        answer = await client.delete("/api/line")
        assert code(answer) == (405, "method_not_allowed")
        assert answer.headers["allow"] == "GET"
        assert (await client.get("/docs")).status_code == 404
        assert (await client.get("/openapi.json")).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x"}], "stop": [""]}, "stop"),
        ({"messages": [{"role": "user", "content": "x"}], "stop": 5}, "stop"),
        ({"messages": [{"role": "user", "content": "x"}], "stream_options": {"x" * 999: 1}},
         "stream_options." + "x" * 185),
    ],
)  # fmt: skip
def test_the_named_field_is_the_callers_not_pydantics(body: dict[str, Any], param: str):
    with pytest.raises(ValidationError) as refused:
        CompletionIn.model_validate({"model": "m"} | body)
    faults = [dict(one) | {"loc": ("body", *one["loc"])} for one in refused.value.errors()]
    assert from_validation(RequestValidationError(faults)).param == param


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
