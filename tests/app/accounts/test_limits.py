"""Moving windows: never more than `most` within any minute, in the store and without it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounts.limits import Budget, Limits, LocalWindows, address_prefix
from app.errors import TooManyRequestsError
from app.store.client import Store
from tests.app.accounts.site import code, make_key, site


async def refused(limits: Limits, budget: Budget, who: str) -> bool:
    try:
        await limits.spend(budget, who)
    except TooManyRequestsError as error:
        return 1 <= (error.retry_after_seconds or 0) <= 60
    return False


async def test_exactly_most_uses_count_even_all_at_once(store: Store):
    limits, budget = Limits(store), Budget("test", 5)
    outcome = await asyncio.gather(*(refused(limits, budget, "eva") for _ in range(20)))
    assert outcome.count(False) == 5


async def test_replicas_share_the_count_and_callers_do_not(store: Store):
    one, other, budget = Limits(store), Limits(store), Budget("test", 1)
    assert not await refused(one, budget, "eva")
    assert await refused(other, budget, "eva")
    assert not await refused(other, budget, "adam")
    assert not await refused(other, Budget("else", 1), "eva")


async def test_the_count_leaves_the_store_by_itself(store: Store):
    await Limits(store).spend(Budget("test", 5), "eva")
    (key,) = await store.command("KEYS", "baton:{l:*")
    assert 0 < await store.command("PTTL", key) <= 60_000


async def test_a_use_counts_again_when_the_oldest_is_a_minute_old(store: Store):
    limits, budget = Limits(store), Budget("test", 1)
    await limits.spend(budget, "eva")
    (key,) = await store.command("KEYS", "baton:{l:*")
    (member,) = await store.command("ZRANGE", key, 0, 0)
    score = await store.command("ZSCORE", key, member)
    await store.command("ZADD", key, int(float(score)) - 59_000, member)
    assert await refused(limits, budget, "eva")
    await store.command("ZADD", key, int(float(score)) - 61_000, member)
    assert not await refused(limits, budget, "eva")


@given(
    most=st.integers(1, 5),
    steps=st.lists(st.floats(0, 40, allow_nan=False), min_size=1, max_size=40),
)
def test_without_the_store_no_minute_holds_more_than_most(most: int, steps: list[float]):
    windows, moment, counted = LocalWindows(), 0.0, list[float]()
    for step in steps:
        moment += step
        wait_seconds = windows.spend("eva", most, moment)
        if wait_seconds == 0:
            counted.append(moment)
        else:
            assert 0 < wait_seconds <= 60.001
            assert windows.spend("eva", most, moment) > 0
    for start in counted:
        assert sum(start <= at < start + 59.999 for at in counted) <= most


def test_memory_for_callers_is_bounded():
    windows = LocalWindows()
    for n in range(10_001):
        windows.spend(str(n), 1, 0.0)
    # the one longest unseen was let go, the others are remembered
    assert windows.spend("10000", 1, 1.0) > 0
    assert windows.spend("0", 1, 1.0) == 0


@pytest.mark.parametrize(
    ("address", "prefix"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "local"),
        ("testclient", "local"),
    ],
)
def test_what_counts_as_one_address(address: str, prefix: str):
    assert address_prefix(address) == prefix


async def test_requests_of_all_keys_of_an_account_count_together(valkey_url: str, tmp_path: Path):
    async with site(valkey_url, tmp_path, requests_per_minute=3) as baton:
        member, client = await baton.member(), await baton.browser(origin=None)
        keys = [await make_key(member) for _ in range(2)]
        headers = [{"Authorization": f"Bearer {key['secret']}"} for key in keys]
        for n in range(3):
            answer = await client.post("/v1/work", headers=headers[n % 2])
            assert answer.status_code == 200
        answer = await client.post("/v1/work", headers=headers[1])
        assert code(answer) == (429, "rate_limited")
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_site_cannot_use_up_its_owners_minute(valkey_url: str, tmp_path: Path):
    async with site(valkey_url, tmp_path, requests_per_minute=1) as baton:
        member, client = await baton.member(), await baton.browser(origin=None)
        origin = "https://shop.example"
        public, secret = await make_key(member, origin), await make_key(member)
        from_site = {"Authorization": f"Bearer {public['secret']}", "Origin": origin}
        assert (await client.post("/v1/work", headers=from_site)).status_code == 200
        assert (await client.post("/v1/work", headers=from_site)).status_code == 429
        owner = {"Authorization": f"Bearer {secret['secret']}"}
        assert (await client.post("/v1/work", headers=owner)).status_code == 200
