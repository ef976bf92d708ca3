from __future__ import annotations

import pytest

from app.line.nodes import NodeDesk, NodeUnknownError
from app.store import keys
from app.store.client import Store
from tests.app.line.hall import POOL, Hall, limits


async def idle_nodes(hall: Hall) -> int:
    return (await hall.line.pools())[0].idle_nodes


async def test_a_node_gets_work_only_after_it_said_that_nothing_runs(hall: Hall) -> None:
    node = await hall.node("n1")
    await node.desk.leave("n1", node.boot)
    node.running = ("old", 7)
    await node.register()
    assert (await hall.ask("ann", generation="a1")).state == "queued"
    assert (await node.beat()).generation is None
    assert await idle_nodes(hall) == 0
    node.running = None
    orders = await node.beat()
    assert (orders.generation, orders.seat) == ("a1", "ann")


async def test_an_unknown_node_or_another_start_must_register(hall: Hall) -> None:
    node = await hall.node()
    with pytest.raises(NodeUnknownError):
        await node.desk.heartbeat("n1", "other boot", running=None, highest_fence=0)
    with pytest.raises(NodeUnknownError):
        await node.desk.heartbeat("n9", node.boot, running=None, highest_fence=0)
    assert await node.desk.take("n1", "other boot") is None


async def test_a_lost_reply_to_take_does_no_harm(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    first = await node.desk.take("n1", node.boot)
    assert first is not None
    assert await node.take() == first
    orders = await node.beat()
    assert (orders.generation, orders.fence) == ("a1", first.fence)


async def test_a_question_that_has_ended_is_not_fetched_again(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    await hall.write_end("a1")
    assert await node.desk.take("n1", node.boot) is None


async def test_a_lost_doorbell_is_healed_by_the_heartbeat(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.store.command("DEL", keys.inbox(POOL, "n1"))
    assert (await node.beat()).generation == "a1"
    assert await node.desk.wait("n1", 0.01) is None


async def test_the_doorbell_stays_short_and_expires(hall: Hall) -> None:
    await hall.node()
    for number in range(20):
        await hall.ask("ann", generation=f"a{number}")
        await hall.line.cancel(POOL, f"a{number}", "stopped")
    inbox = keys.inbox(POOL, "n1")
    assert await hall.store.command("LLEN", inbox) <= 4
    assert 0 < await hall.store.command("PTTL", inbox) <= 60_000


async def test_a_node_that_forgets_the_last_event_gets_it_written(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    await node.finish()
    failure = await hall.failure("a1")
    assert (failure["code"], failure["retry"]) == ("node_error", True)


async def test_saying_finished_twice_or_too_late_changes_nothing(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    taken = await node.take()
    assert taken is not None
    await hall.write_end("a1")
    await node.finish()
    await hall.ask("ann", generation="a2")
    await node.take()
    await node.desk.finished("n1", node.boot, generation="a1", fence=taken.fence)
    await node.desk.finished("n1", "other boot", generation="a2", fence=node.highest_fence)
    assert (await hall.line.seat("ann")).generation == "a2"
    assert (await hall.place("a2")).state == "assigned"


async def test_a_late_word_about_an_earlier_try_does_not_end_the_next(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    hall.watched = {"a1"}
    first = await node.take()
    assert first is not None
    hall.silent = {"n1"}
    await hall.pass_time(8)
    node.running = None
    await node.come()
    await node.take()
    assert node.running == ("a1", node.highest_fence)
    await node.desk.finished("n1", node.boot, generation="a1", fence=first.fence)
    assert (await hall.place("a1")).state == "assigned"


async def test_a_lost_word_of_finishing_is_healed_by_the_heartbeat(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1", hold=False)
    await hall.ask("bob", generation="b1")
    await node.take()
    await hall.write_end("a1")
    node.running = None  # it finished, but its word never arrived
    assert (await node.beat()).generation == "b1"


async def test_a_report_from_before_the_last_question_does_not_free_the_node(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    before = node.highest_fence
    await node.take()
    # give the node up from outside: it must say that nothing runs
    await hall.line.leave("ann")
    await hall.pass_time(14)
    assert (await hall.failure("a1"))["code"] == "node_error"
    await hall.ask("bob", generation="b1")
    await node.desk.heartbeat("n1", node.boot, running=None, highest_fence=before)
    assert (await hall.place("b1")).state == "queued"
    node.running = None
    await node.beat()
    assert (await hall.place("b1")).state == "assigned"


async def test_a_silent_node_is_declared_dead(hall: Hall) -> None:
    await hall.node("n1")
    hall.silent = {"n1"}
    await hall.pass_time(2)
    assert (await hall.line.pools())[0].nodes == 1
    await hall.pass_time(8)
    assert (await hall.line.pools())[0].nodes == 0


async def test_before_the_first_token_a_dead_nodes_question_moves_unnoticed(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask("ann", generation="a1")
    await hall.ask("ann", generation="a2")
    await hall.ask("bob", generation="b1")
    taken = await node.take()
    assert taken is not None
    await hall.begin_writing("a1", kind="reading")
    hall.silent = {"n1"}
    hall.watched = {"a1", "b1"}
    await hall.pass_time(8)
    place = await hall.place("a1")
    assert (place.state, place.rank, place.waiting, place.returned) == ("queued", 1, 1, True)
    assert (await hall.place("a2")).behind_own == 1
    assert (await hall.place("b1")).rank == 1  # nobody moved in the lane of the others
    other = await hall.node("n2")
    again = await other.take()
    assert again is not None
    assert again.generation == "a1"
    assert again.fence > taken.fence
    assert not (await hall.place("a1")).returned


async def test_while_a_question_is_moving_nobody_may_write_into_it(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    hall.silent = {"n1"}
    await hall.pass_time(8)
    assert await hall.store.command("HGET", keys.generation_hash(POOL, "a1"), "fence") == b"0"


async def test_a_seat_without_open_questions_ends_with_its_node(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    await hall.write_end("a1")
    await node.finish()
    hall.silent = {"n1"}
    await hall.pass_time(8)
    assert (await hall.line.seat("ann")).state == "none"


async def test_a_stopped_question_is_not_asked_again_elsewhere(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    await hall.line.cancel(POOL, "a1", "stopped")
    hall.silent = {"n1"}
    await hall.pass_time(8)
    assert (await hall.failure("a1"))["code"] == "left"


async def test_the_returned_lane_goes_first(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1", tier="priority")
    await node.take()
    hall.silent = {"n1"}
    await hall.pass_time(8)
    hall.silent = set()
    await hall.node("n2")
    assert (await hall.place("a1")).state == "assigned"
    assert (await hall.place("b1")).state == "queued"


async def test_a_new_start_of_a_node_means_that_its_lease_was_lost(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    await hall.begin_writing("a1")
    first = node.highest_fence
    node.boot, node.running = "boot-2", None
    await node.come()
    again = await node.take()
    assert again is not None
    assert (again.generation, again.stream_length) == ("a1", 1)
    assert again.fence > first


async def test_registering_again_with_the_same_start_keeps_the_lease(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    await node.register()
    assert (await node.beat()).generation == "a1"


async def test_a_node_that_leaves_gives_its_question_back(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.node("n2")
    await hall.ask("ann", generation="a1")
    first = await hall.place("a1")
    assert first.node is not None
    await node.desk.leave("n1", "other boot")
    assert (await hall.line.pools())[0].nodes == 2
    await node.desk.leave(first.node.id, node.boot)
    second = await hall.place("a1")
    assert second.state == "assigned"
    assert second.node is not None
    assert second.node.id != first.node.id


async def test_a_node_that_does_not_stop_is_given_up_on(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    hall.watched = {"a1", "b1"}
    await node.take()
    await hall.line.cancel(POOL, "a1", "stopped")
    await hall.pass_time(4)
    assert (await hall.place("a1")).state == "assigned"
    await hall.pass_time(10)
    assert (await hall.failure("a1"))["code"] == "node_error"
    # it still reports the old answer as running: nobody is sent there
    orders = await node.beat()
    assert (orders.generation, orders.seat) == (None, None)
    assert (await hall.place("b1")).state == "queued"
    await node.finish()
    assert (await hall.place("b1")).state == "assigned"


async def test_a_question_that_its_node_never_fetches_is_asked_elsewhere(hall: Hall) -> None:
    await hall.node("n1")
    await hall.ask("ann", generation="a1")
    hall.watched = {"a1"}
    await hall.pass_time(4)
    assert (await hall.place("a1")).state == "assigned"
    await hall.node("n2")
    await hall.pass_time(10)
    place = await hall.place("a1")
    assert place.state == "assigned"
    assert place.node is not None
    assert place.node.id == "n2"


async def test_a_question_that_was_fetched_has_all_the_time_it_needs(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.node("n2")
    await hall.ask("ann", generation="a1")
    hall.watched = {"a1"}
    await node.take()
    await hall.pass_time(40)
    assert (await node.beat()).generation == "a1"


async def test_fetching_again_does_not_lengthen_the_time_to_stop(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    await hall.line.cancel(POOL, "a1", "stopped")
    await node.take()
    await hall.pass_time(14)
    assert (await hall.failure("a1"))["code"] == "node_error"


async def test_a_take_whose_reply_was_lost_does_not_hold_the_node_back_for_ever(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.desk.take("n1", node.boot)  # the reply never arrives
    await hall.line.leave("ann")
    await hall.pass_time(20)
    assert await idle_nodes(hall) == 1


async def test_a_lease_that_the_store_forgot_keeps_its_node_from_others(hall: Hall) -> None:
    node = await hall.node()
    node.running = ("unknown", 2**50)
    node.highest_fence = 2**50
    orders = await node.beat()
    assert orders.generation is None
    assert (await hall.ask("ann", generation="a1")).state == "queued"
    node.running = None
    await node.beat()
    assert (await hall.place("a1")).state == "assigned"


async def test_a_late_report_of_a_finished_answer_does_not_hold_the_node_back(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1", hold=False)
    await node.take()
    late = node.running
    await hall.write_end("a1")
    await node.finish()
    await node.desk.heartbeat("n1", node.boot, running=late, highest_fence=node.highest_fence)
    assert await idle_nodes(hall) == 1


@pytest.mark.parametrize("name", ["", "a{b", "a}b", "x" * 201])
async def test_a_pool_name_that_would_break_the_keys_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="pool"):
        NodeDesk(store, name, limits())


async def test_a_question_that_fells_its_nodes_is_not_given_to_a_fourth(hall: Hall) -> None:
    for name in ("n1", "n2", "n3", "n4"):
        await hall.node(name)
    await hall.ask("ann", generation="a1")
    hall.watched.add("a1")
    for _ in range(3):
        victim = [node for node in hall.nodes.values() if await node.take()][0]
        hall.silent.add(victim.name)
        victim.running = None
        await hall.pass_time(hall.settings.node_dead_seconds + 1)
        del hall.nodes[victim.name]
    failure = await hall.failure("a1")
    assert (failure["code"], failure["retry"]) == ("unanswerable", False)
    survivor = next(iter(hall.nodes.values()))
    assert await survivor.take() is None
    assert (await hall.line.seat("ann")).state == "none"
