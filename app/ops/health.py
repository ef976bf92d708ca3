"""Is the process alive, is it ready, and what does it count.

`/healthz` looks at nothing but this process: an outage of the store must not make a supervisor
restart it. `/readyz` says whether a question asked now could be answered.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from app.errors import AppError, StoreUnavailableError
from app.parts import Parts, get_parts

router = APIRouter(include_in_schema=False)


@router.api_route("/healthz", methods=["GET", "HEAD"])
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.api_route("/readyz", methods=["GET", "HEAD"])
async def readyz(parts: Annotated[Parts, Depends(get_parts)]) -> JSONResponse:
    """503 while the store is out of reach or no node is alive, with the reason."""
    try:
        async with asyncio.timeout(3):
            pools = await parts.line.pools()
    except (AppError, TimeoutError):
        return JSONResponse({"status": "no store"}, status_code=503)
    if not any(pool.nodes for pool in pools):
        return JSONResponse({"status": "no node"}, status_code=503)
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
async def metrics(parts: Annotated[Parts, Depends(get_parts)]) -> Response:
    """Prometheus: read from the store at the scrape, so every replica says the same."""
    registry = CollectorRegistry()
    up = Gauge("baton_store_up", "1 while the store answers", registry=registry)
    nodes = Gauge("baton_nodes", "live nodes", ["pool"], registry=registry)
    idle = Gauge("baton_nodes_idle", "live nodes without a lease", ["pool"], registry=registry)
    waiting = Gauge("baton_waiting", "tickets waiting in line", ["pool"], registry=registry)
    try:
        pools = await parts.line.pools()
    except StoreUnavailableError:
        up.set(0)
    else:
        up.set(1)
        for pool in pools:
            nodes.labels(pool.name).set(pool.nodes)
            idle.labels(pool.name).set(pool.idle_nodes)
            waiting.labels(pool.name).set(pool.waiting)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
