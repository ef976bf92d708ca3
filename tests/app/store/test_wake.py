from __future__ import annotations

import asyncio

import pytest

from app.store.wake import Wake


async def test_it_stays_set_until_it_is_cleared() -> None:
    wake = Wake()
    wake.set()
    assert await wake.wait_within(60)
    assert await wake.wait_within(60)
    wake.clear()
    assert not wake.is_set()
    assert not await wake.wait_within(0.001)


async def test_whoever_waits_is_woken_at_once() -> None:
    wake = Wake()
    waiting = asyncio.create_task(wake.wait_within(60))
    await asyncio.sleep(0)
    wake.set()
    wake.set()
    async with asyncio.timeout(5):
        assert await waiting


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    wake = Wake()
    waiting = asyncio.create_task(wake.wait_within(60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    wake.set()
    assert await wake.wait_within(0)
