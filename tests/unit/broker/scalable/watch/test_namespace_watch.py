"""Watches of a namespace on the memory store: the first set, what follows, and what never does. Time is virtual."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from anabranch.broker.scalable.watch.membership import Difference
from anabranch.broker.scalable.watch.namespace_watch import pieces
from anabranch.broker.security.rights import NotAuthorizedError
from anabranch.metadata.port import SessionState
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import controller_path, load_path, subscription_path, topic_path
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.namespace_rig import WINDOW_S, Rig, full, simulated

TOPIC = TopicName.parse(full("orders"))
BLUE = ("colour", "blue")


# -- the first set


@simulated
async def test_the_first_update_is_the_whole_set_by_full_names(rig: Rig) -> None:
    await rig.make("b")
    await rig.make("a/with/slashes")
    await rig.make("zähler")
    await rig.make("elsewhere", NamespaceName("public", "other"))
    client = await rig.opened()
    assert [list(update.snapshot.topics) for _, update in client.told] == [
        [full("a/with/slashes"), full("b"), full("zähler")]
    ]


@simulated
async def test_an_empty_set_is_told_too(rig: Rig) -> None:
    assert (await rig.opened()).events == [("snapshot", [])]


@simulated
async def test_filters_narrow_the_set_here_and_all_must_match(rig: Rig) -> None:
    await rig.make("both", colour="blue", size="2")
    await rig.make("one", colour="blue")
    await rig.make("none")
    assert (await rig.opened(BLUE, ("size", "2"))).events == [("snapshot", ["both"])]
    assert (await rig.opened(BLUE)).events == [("snapshot", ["both", "one"])]


@simulated
async def test_folders_of_classic_topics_and_topics_being_deleted_are_not_in_it(rig: Rig) -> None:
    # A subscription of a classic topic, shown to V5 clients as a layout, makes a folder where a record would be.
    await rig.writer.put(
        subscription_path(TopicName.parse("persistent://public/default/classic"), "s"), b"{}"
    )
    await rig.make("going")
    await rig.change("going", lambda record: replace(record, is_deleting=True))
    await rig.make("there")
    assert (await rig.opened()).events == [("snapshot", ["there"])]


@simulated
async def test_a_record_that_cannot_be_read_hides_no_other(rig: Rig) -> None:
    await rig.writer.put(topic_path(TOPIC), b"nonsense")
    await rig.make("there")
    client = await rig.opened()
    await rig.make("later")
    await rig.later()
    assert client.events == [("snapshot", ["there"]), ("diff", ["later"], [])]


# -- races with the first reading


@simulated
async def test_a_topic_made_while_the_set_is_read_is_not_lost(rig: Rig) -> None:
    await rig.make("a")
    rig.hook.after_children = lambda: rig.make("late")
    client = await rig.opened()
    await rig.later()
    assert client.events == [("snapshot", ["a"]), ("diff", ["late"], [])]


@simulated
async def test_a_topic_deleted_while_the_set_is_read_leaves_no_ghost(rig: Rig) -> None:
    await rig.make("a")
    await rig.make("short")
    gone: list[str] = []

    async def after_get(path: str) -> None:
        if path.endswith("/short") and not gone:
            gone.append(path)
            await rig.delete("short")

    rig.hook.after_get = after_get
    client = await rig.opened()
    # Its value had been taken, so it is in the set that was read; it must go again.
    assert client.events == [("snapshot", ["a", "short"])]
    await rig.later()
    assert client.events[1:] == [("diff", [], ["short"])]


@simulated
async def test_a_topic_gone_between_the_listing_and_its_own_reading_never_shows(rig: Rig) -> None:
    await rig.make("a")
    await rig.make("short")
    rig.hook.after_children = lambda: rig.delete("short")
    client = await rig.opened()
    await rig.later()
    assert client.events == [("snapshot", ["a"])]


@simulated
async def test_no_difference_leaves_before_the_set(rig: Rig) -> None:
    client = rig.watch()

    async def churn() -> None:
        for number in range(50):
            await rig.make(f"t{number}")
            await asyncio.sleep(0.01)

    # Longer than many windows.
    rig.hook.after_children = churn
    await rig.until(lambda: client.watch.is_live)
    await rig.later()
    assert client.events[0][0] == "snapshot"
    assert {kind for kind, *_ in client.events[1:]} == {"diff"}
    assert client.topics == {full(f"t{number}") for number in range(50)}


@simulated
async def test_a_set_is_fresh_even_where_others_watch_already(rig: Rig) -> None:
    await rig.opened()
    # The store tells this broker nothing of it for a while.
    rig.store.disconnect()
    await rig.make("unheard")
    rig.store.session.move(SessionState.CONNECTED)
    client = await rig.opened()
    assert client.events == [("snapshot", ["unheard"])]


@simulated
async def test_watches_opened_together_share_one_reading(rig: Rig) -> None:
    for number in range(10):
        await rig.make(f"t{number}")
    clients = [rig.watch() for _ in range(100)]
    await rig.until(lambda: all(client.watch.is_live for client in clients))
    assert rig.hook.reads <= 20
    assert {len(client.topics) for client in clients} == {10}


# -- later


@simulated
async def test_what_is_made_and_deleted_is_told(rig: Rig) -> None:
    client = await rig.opened()
    await rig.make("a")
    await rig.later()
    await rig.make("b")
    await rig.later()
    await rig.delete("a")
    await rig.later()
    assert client.events[1:] == [("diff", ["a"], []), ("diff", ["b"], []), ("diff", [], ["a"])]


@simulated
async def test_a_topic_marked_for_deletion_is_told_at_once_and_once(rig: Rig) -> None:
    await rig.make("a")
    client = await rig.opened()
    await rig.change("a", lambda record: replace(record, is_deleting=True))
    await rig.later()
    await rig.delete("a")
    await rig.later()
    assert client.events[1:] == [("diff", [], ["a"])]


@simulated
async def test_a_property_change_moves_a_topic_into_and_out_of_the_set(rig: Rig) -> None:
    await rig.make("a", colour="red")
    blue, every = await rig.opened(BLUE), await rig.opened()
    await rig.change("a", lambda record: replace(record, properties={"colour": "blue"}))
    await rig.later()
    await rig.change("a", lambda record: replace(record, properties={"colour": "blue", "size": "2"}))
    await rig.later()
    await rig.change("a", lambda record: replace(record, properties={}))
    await rig.later()
    assert blue.events == [("snapshot", []), ("diff", ["a"], []), ("diff", [], ["a"])]
    assert every.events == [("snapshot", ["a"])]


@simulated
async def test_deleting_what_was_not_in_the_set_says_nothing(rig: Rig) -> None:
    await rig.make("a", colour="red")
    client = await rig.opened(BLUE)
    await rig.delete("a")
    await rig.later()
    assert client.events == [("snapshot", [])]


@simulated
async def test_what_happens_inside_a_topic_says_nothing(rig: Rig) -> None:
    await rig.make("orders")
    client = await rig.opened()
    reads = rig.hook.reads
    await rig.writer.create(controller_path(TOPIC), b"pulsar://me:6650", ephemeral=True)
    await rig.writer.put(load_path(TOPIC, SegmentId(0)), b"{}")
    await rig.writer.put(subscription_path(TOPIC, "s"), b"{}")
    await rig.writer.put(f"{subscription_path(TOPIC, 's')}/consumers/c", b"{}")
    await rig.later()
    assert rig.hook.reads == reads
    # These change the record itself: it is read, and no reason to say anything.
    await rig.change("orders", lambda record: replace(record, layout=record.layout.split(0, 1)))
    await rig.change("orders", lambda record: replace(record, layout=record.layout.merge(1, 2, 2)))
    await rig.later()
    assert rig.hook.reads > reads
    assert client.events == [("snapshot", ["orders"])]


@simulated
async def test_topics_of_other_namespaces_are_not_read(rig: Rig) -> None:
    client = await rig.opened()
    reads = rig.hook.reads
    await rig.make("t", NamespaceName("public", "other"))
    await rig.make("t", NamespaceName("public", "default-2"))
    await rig.later()
    assert (rig.hook.reads, client.events) == (reads, [("snapshot", [])])


# -- the window


@simulated
async def test_what_comes_within_50_ms_is_one_difference(rig: Rig) -> None:
    await rig.make("old")
    client = await rig.opened()
    began = rig.loop.time()
    for number in range(4):
        await rig.make(f"t{number}")
        await asyncio.sleep(0.01)
    await rig.delete("old")
    await rig.turns()
    assert client.events == [("snapshot", ["old"])]
    await rig.later()
    assert client.events[1:] == [("diff", ["t0", "t1", "t2", "t3"], ["old"])]
    assert client.told[1][0] - began == pytest.approx(WINDOW_S)


@simulated
async def test_a_steady_stream_of_changes_is_told_window_by_window(rig: Rig) -> None:
    client = await rig.opened()
    for number in range(100):
        await rig.make(f"t{number}")
        await asyncio.sleep(0.01)
    await rig.later()
    assert 10 <= len(client.told) - 1 <= 25
    assert len(client.topics) == 100


@simulated
async def test_what_comes_and_goes_within_a_window_is_not_mentioned(rig: Rig) -> None:
    client = await rig.opened()
    await rig.make("a")
    await rig.turns()
    await rig.delete("a")
    await rig.later()
    assert client.events == [("snapshot", [])]


@pytest.mark.parametrize("is_seen_gone", [True, False])
@simulated
async def test_a_topic_made_anew_within_a_window_is_removed_and_added(rig: Rig, is_seen_gone: bool) -> None:
    await rig.make("a")
    client = await rig.opened()
    await rig.delete("a")
    if is_seen_gone:
        await rig.turns()
    await rig.make("a")
    await rig.later()
    assert client.events == [("snapshot", ["a"]), ("diff", ["a"], ["a"])]


# -- the hash


@simulated
async def test_a_client_with_the_same_set_is_told_nothing_and_then_what_changes(rig: Rig) -> None:
    await rig.make("a")
    client = await rig.opened()
    client.watch.close()
    await rig.opened(client=client, known_hash=client.hash)
    await rig.later()
    assert client.events == [("snapshot", ["a"])]
    await rig.make("b")
    await rig.later()
    await rig.delete("a")
    await rig.later()
    assert client.events[1:] == [("diff", ["b"], []), ("diff", [], ["a"])]


@simulated
async def test_a_client_with_another_set_is_told_the_whole_set(rig: Rig) -> None:
    await rig.make("a")
    client = await rig.opened()
    client.watch.close()
    await rig.delete("a")
    await rig.make("b")
    await rig.opened(client=client, known_hash=client.hash)
    assert client.events == [("snapshot", ["a"]), ("snapshot", ["b"])]


@simulated
async def test_the_hash_is_of_what_the_filters_leave(rig: Rig) -> None:
    await rig.make("a", colour="blue")
    client = await rig.opened(BLUE)
    client.watch.close()
    await rig.make("b")
    await rig.opened(BLUE, client=client, known_hash=client.hash)
    await rig.later()
    assert client.events == [("snapshot", ["a"])]


@simulated
async def test_a_client_that_holds_an_empty_set_is_told_nothing_either(rig: Rig) -> None:
    client = await rig.opened(known_hash="00000000")
    await rig.later()
    assert client.events == []
    await rig.make("a")
    await rig.later()
    assert client.events == [("diff", ["a"], [])]


# -- closing


@simulated
async def test_nothing_is_told_after_closing_and_closing_twice_is_harmless(rig: Rig) -> None:
    client, other = await rig.opened(), await rig.opened()
    await rig.make("a")
    await rig.turns()
    client.watch.close()
    client.watch.close()
    client.read_again()
    await rig.later()
    assert client.events == [("snapshot", [])]
    assert other.events == [("snapshot", []), ("diff", ["a"], [])]
    assert (rig.feed.listeners, rig.feed.namespaces) == (1, 1)


@simulated
async def test_a_watch_closed_while_it_opens_leaves_nothing(rig: Rig) -> None:
    await rig.make("a")
    for turns in range(12):
        client = rig.watch()
        await rig.turns(turns)
        client.watch.close()
        await rig.later()
        assert rig.feed.namespaces == 0
        assert rig.loop.timers == 0


@simulated
async def test_ten_thousand_watches_leave_nothing_behind(rig: Rig) -> None:
    await rig.make("a")
    clients = [rig.watch(namespace=NamespaceName("public", f"ns-{n % 100}")) for n in range(10_000)]
    await rig.until(lambda: all(client.watch.is_live for client in clients))
    assert (rig.feed.listeners, rig.feed.namespaces) == (10_000, 100)
    # All of them are one listener of the store.
    assert rig.hook.watches == 1
    tasks = len(asyncio.all_tasks())
    for client in clients:
        client.watch.close()
    await rig.later()
    assert (rig.feed.listeners, rig.feed.namespaces, rig.loop.timers) == (0, 0, 0)
    assert len(asyncio.all_tasks()) <= tasks
    reads, callbacks = rig.hook.reads, rig.loop.callbacks
    await rig.make("b")
    await rig.turns(20)
    assert rig.hook.reads == reads
    assert rig.loop.callbacks - callbacks < 100


# -- refusals


@simulated
async def test_a_client_without_the_right_is_refused_and_nothing_is_read(rig: Rig) -> None:
    async def refuse() -> None:
        raise NotAuthorizedError("no")

    client = await rig.opened(admit=refuse)
    assert client.events == [("error", pb.AuthorizationError)]
    assert (rig.hook.reads, rig.feed.namespaces, rig.ended) == (0, 0, [client.watch])


@simulated
async def test_names_beyond_one_frame_are_an_error_that_says_what_to_do(rig: Rig) -> None:
    for number in range(20):
        await rig.make(f"{'long' * 30}-{number}", colour="blue" if number < 5 else "red")
    client = await rig.opened(frame_bytes_max=1_000)
    ((_, update),) = client.told
    assert update.error == pb.NotAllowedError
    assert "20 scalable topics" in update.message
    assert "filter" in update.message
    assert rig.ended == [client.watch]
    assert rig.feed.namespaces == 0
    assert len((await rig.opened(BLUE, frame_bytes_max=1_000)).topics) == 5


@simulated
async def test_a_difference_beyond_one_frame_takes_several(rig: Rig) -> None:
    client = await rig.opened(frame_bytes_max=1_000)
    for number in range(100):
        await rig.make(f"topic-{number}")
    await rig.later()
    assert len(client.topics) == 100
    several = len(client.told)
    assert several > 3
    for number in range(100):
        await rig.delete(f"topic-{number}")
        await rig.make(f"topic-{number}")
    await rig.later()
    # What was made anew is gone before it comes again, and every frame fits.
    assert len(client.topics) == 100
    assert all(update.ByteSize() <= 1_000 for _, update in client.told)
    kinds = [(bool(u.diff.removed), bool(u.diff.added)) for _, u in client.told[several:]]
    assert kinds == sorted(kinds, reverse=True, key=lambda kind: kind[0])


def test_a_difference_that_fits_is_one_frame() -> None:
    difference = Difference(["a", "b"], ["b", "c"])
    assert list(pieces(difference, 1_000)) == [difference]
