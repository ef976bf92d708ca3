"""Answers whose node fails after the first token: moved, or given up with what was written kept."""

from __future__ import annotations

import pytest

from app.errors import FencedError
from app.line.types import Assignment, CancelReason
from app.store import keys
from tests.app.line.hall import POOL, FakeNode, Hall, limits


async def broken_off(hall: Hall, *, hold: bool = True) -> FakeNode:
    """ann's answer a1 has two entries, one with tokens, when its node n1 goes silent."""
    node = await hall.node("n1")
    await hall.ask("ann", generation="a1", hold=hold)
    hall.watched = {"a1"}
    await node.take()
    await hall.begin_writing("a1", kind="reading")
    await hall.begin_writing("a1")
    hall.silent = {"n1"}
    await hall.pass_time(8)
    return node


async def taken(node: FakeNode) -> Assignment:
    assignment = await node.take()
    assert assignment is not None
    return assignment


async def waits_for_rescue(hall: Hall) -> bool:
    return bool(await hall.store.command("ZCARD", keys.pool_prefix(POOL) + "rescue"))


async def test_the_next_node_is_told_what_is_written_under_a_new_fence(hall: Hall) -> None:
    first = await broken_off(hall)
    place = await hall.place("a1")
    assert (place.state, place.rank, place.returned) == ("queued", 1, True)
    again = await taken(await hall.node("n2"))
    assert (again.generation, again.stream_length) == ("a1", 2)
    assert again.fence > first.highest_fence
    assert again.payload == b"work a1"
    assert not await waits_for_rescue(hall)


async def test_neither_between_the_nodes_nor_later_may_the_first_one_append(hall: Hall) -> None:
    first = await broken_off(hall)
    late = ("delta", {})
    with pytest.raises(FencedError):
        await first.relay.append("a1", first.highest_fence, [late])
    second = await hall.node("n2")
    await second.take()
    with pytest.raises(FencedError):
        await first.relay.append("a1", first.highest_fence, [late])
    with pytest.raises(FencedError):
        await first.relay.end("a1", first.highest_fence, "done", {})
    await second.relay.append("a1", second.highest_fence, [late])
    assert await hall.store.command("XLEN", keys.generation_stream(POOL, "a1")) == 3


async def test_it_goes_before_those_who_wait_and_moves_none_of_them_back(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1", tier="priority")
    hall.watched = {"a1", "b1"}
    await node.take()
    await hall.begin_writing("a1")
    hall.silent = {"n1"}
    await hall.pass_time(8)
    assert await hall.ranks(["a1", "b1"]) == [1, 1]
    assert (await taken(await hall.node("n2"))).generation == "a1"
    assert await hall.ranks(["b1"]) == [1]


@pytest.mark.parametrize(("labels", "same"), [(("A", "A"), True), (("A", "B"), False)])
async def test_the_next_node_is_told_whether_its_numerics_are_the_same(
    hall: Hall, labels: tuple[str, str], same: bool
) -> None:
    node = await hall.node("n1", numerics=labels[0])
    await hall.ask("ann", generation="a1")
    await node.take()
    await hall.begin_writing("a1")
    await node.desk.leave("n1", node.boot)
    assert (await taken(await hall.node("n2", numerics=labels[1]))).same_numerics is same


async def test_a_text_of_mixed_numerics_is_never_exact_again(hall: Hall) -> None:
    hall.watched = {"a1"}
    await hall.ask_at_node("ann", "a1", await hall.node("n1", numerics="A"))
    for name, label in (("n2", "B"), ("n3", "A")):
        await hall.begin_writing("a1")
        await hall.crash()
        again = await taken(await hall.node(name, numerics=label))
        assert not again.same_numerics


async def test_the_label_is_that_of_the_node_that_wrote(hall: Hall) -> None:
    await hall.ask_at_node("ann", "a1", await hall.node("n1", numerics="A"))
    await hall.crash()  # not a token of it
    second = await hall.node("n2", numerics="B")
    await second.take()
    await hall.begin_writing("a1")
    await hall.crash()
    assert (await taken(await hall.node("n3", numerics="B"))).same_numerics


async def test_without_a_node_in_time_it_fails_with_what_was_written(hall: Hall) -> None:
    await broken_off(hall)
    await hall.pass_time(50)
    assert (await hall.place("a1")).state == "queued"
    await hall.pass_time(12)
    failure = await hall.failure("a1")
    assert (failure["code"], failure["retry"]) == ("node_lost", True)
    assert await hall.store.command("XLEN", keys.generation_stream(POOL, "a1")) == 3
    assert (await hall.line.seat("ann")).state == "none"
    assert not await waits_for_rescue(hall)


async def test_the_seats_further_questions_keep_the_returned_lane(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask("ann", generation="a1")
    await hall.ask("ann", generation="a2")
    hall.watched = {"a1", "a2"}
    await node.take()
    await hall.begin_writing("a1")
    hall.silent = {"n1"}
    await hall.pass_time(75)
    assert (await hall.failure("a1"))["code"] == "node_lost"
    place = await hall.place("a2")
    assert (place.rank, place.behind_own, place.returned) == (1, 0, True)
    assert (await taken(await hall.node("n2"))).generation == "a2"


async def test_a_question_without_a_token_waits_as_long_as_its_seat_does(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask("ann", generation="a1")
    hall.watched = {"a1"}
    await node.take()
    await hall.begin_writing("a1", kind="reading")
    hall.silent = {"n1"}
    await hall.pass_time(200)
    assert (await hall.place("a1")).state == "queued"


async def test_a_node_that_read_on_and_wrote_nothing_does_not_hide_what_is_written(
    hall: Hall,
) -> None:
    await broken_off(hall)
    del hall.nodes["n1"]
    second = await hall.node("n2")
    await second.take()
    await hall.begin_writing("a1", kind="reading")
    await hall.crash()
    await hall.pass_time(70)
    assert (await hall.failure("a1"))["code"] == "node_lost"


async def test_an_outage_of_the_store_does_not_use_up_the_limit(hall: Hall) -> None:
    await broken_off(hall)
    await hall.shift_clock(300)
    await hall.line.pump(POOL)
    await hall.pass_time(50)
    assert (await hall.place("a1")).state == "queued"
    assert (await taken(await hall.node("n2"))).generation == "a1"


async def test_an_answer_that_fells_its_nodes_is_not_given_to_a_fourth(hall: Hall) -> None:
    await hall.ask_at_node("ann", "a1", await hall.node("n1"))
    for name in ("n2", "n3"):
        await hall.begin_writing("a1")
        await hall.crash()
        await taken(await hall.node(name))
    await hall.crash()
    assert (await hall.failure("a1"))["code"] == "node_lost"


async def test_a_wish_to_stop_ends_it_instead_of_moving_it(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.node("n2")
    await hall.ask_at_node("ann", "a1", node)
    await hall.begin_writing("a1")
    await hall.line.cancel(POOL, "a1", "stopped")
    await hall.crash()
    assert (await hall.failure("a1"))["code"] == "node_lost"


@pytest.mark.parametrize(
    ("reason", "code"), [("stopped", "left"), ("gone", "left"), ("admin", "removed")]
)
async def test_it_can_be_called_off_while_it_waits(
    hall: Hall, reason: CancelReason, code: str
) -> None:
    await broken_off(hall)
    await hall.line.cancel(POOL, "a1", reason)
    failure = await hall.failure("a1")
    assert failure["code"] == code
    assert "What was written is kept" in str(failure["message"])
    assert not await waits_for_rescue(hall)


async def test_time_with_the_first_node_is_no_time_in_the_line(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    await hall.begin_writing("a1")
    await hall.pass_time(40)
    await hall.crash()
    await hall.pass_time(3)
    again = await taken(await hall.node("n2"))
    assert 3_000 <= again.queued_ms < 5_000


async def test_a_node_that_leaves_in_order_hands_its_answer_over(hall: Hall) -> None:
    node = await hall.node("n1")
    other = await hall.node("n2")
    running = {"n1": node, "n2": other}
    await hall.ask("ann", generation="a1")
    place = await hall.place("a1")
    assert place.node
    first = running.pop(place.node.id)
    await first.take()
    await hall.begin_writing("a1")
    await first.desk.leave(first.name, first.boot)
    again = await taken(next(iter(running.values())))
    assert (again.generation, again.stream_length) == ("a1", 1)


async def test_a_node_that_hands_its_answer_over_is_free_and_may_go_on_itself(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    await hall.ask("bob", generation="b1")
    await hall.begin_writing("a1")
    first = node.highest_fence
    await node.finish(handed_over=True)
    again = await taken(node)
    assert (again.generation, again.stream_length) == ("a1", 1)
    assert again.fence > first
    # said once more, because the reply was lost: it changes nothing
    await node.desk.finished("n1", node.boot, generation="a1", fence=first, handed_over=True)
    assert (await node.beat()).fence == again.fence


async def test_a_late_report_of_an_answer_handed_over_does_not_hold_the_node_back(
    hall: Hall,
) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    await hall.begin_writing("a1")
    second = await hall.node("n2")
    late = node.running
    # the node that is idle longest is next: not within the same millisecond
    await hall.shift_clock(0.01)
    await node.finish(handed_over=True)
    assert (await taken(second)).generation == "a1"
    await node.desk.heartbeat("n1", node.boot, running=late, highest_fence=node.highest_fence)
    assert (await hall.line.pools())[0].idle_nodes == 1


@pytest.mark.parametrize("way", ["hand over", "depart"])
async def test_giving_back_in_order_may_happen_any_number_of_times(hall: Hall, way: str) -> None:
    node = await hall.node("n1")
    await hall.ask("ann", generation="a1")
    for _ in range(6):
        await taken(node)
        await hall.begin_writing("a1")
        if way == "hand over":
            await node.finish(handed_over=True)
        else:
            await node.desk.leave("n1", node.boot)
            node.running = None
            await node.come()
    assert (await taken(node)).stream_length == 6


async def test_what_has_ended_is_not_handed_over(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    await hall.write_end("a1")
    await node.finish(handed_over=True)
    assert (await hall.line.seat("ann")).state == "holding"


# -- nodes that stand still -----------------------------------------------------------------------


@pytest.fixture
def impatient(hall: Hall) -> Hall:
    return Hall(hall.store, limits(stuck_seconds=30))


async def test_a_node_that_reports_but_writes_nothing_loses_its_answer(impatient: Hall) -> None:
    hall = impatient
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    await hall.begin_writing("a1")
    await hall.pass_time(28)
    assert (await node.beat()).generation == "a1"
    second = await hall.node("n2")
    await hall.pass_time(8)
    again = await taken(second)
    assert (again.generation, again.stream_length) == ("a1", 1)
    # the first one hears of it, and gets no work before it has stopped
    assert (await node.beat()).generation is None
    await hall.ask("bob", generation="b1")
    assert (await hall.place("b1")).state == "queued"
    node.running = None
    await node.beat()
    assert (await taken(node)).generation == "b1"


async def test_whatever_is_written_is_a_sign_of_life(impatient: Hall) -> None:
    hall = impatient
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    for kind in ("reading", "reading", "delta", "delta"):
        await hall.pass_time(25)
        await hall.begin_writing("a1", kind=kind)
    assert (await node.beat()).generation == "a1"
    await hall.pass_time(36)
    assert (await node.beat()).generation is None


async def test_a_node_at_rest_does_not_stand_still(impatient: Hall) -> None:
    hall = impatient
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    await hall.write_end("a1")
    await node.finish()
    await hall.pass_time(40)
    assert (await hall.line.seat("ann")).state == "holding"
    assert not await hall.store.command("ZCARD", keys.pool_prefix(POOL) + "alive")


async def test_a_question_without_a_token_moves_on_from_a_stuck_node(impatient: Hall) -> None:
    hall = impatient
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    second = await hall.node("n2")
    await hall.pass_time(36)
    assert (await taken(second)).generation == "a1"


async def test_an_outage_does_not_make_a_node_look_stuck(impatient: Hall) -> None:
    hall = impatient
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    await hall.begin_writing("a1")
    await hall.shift_clock(100)
    await node.beat()
    await hall.pass_time(20)
    assert (await node.beat()).generation == "a1"
