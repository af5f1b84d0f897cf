"""`/admin/v2/anabranch/read-plan`: who is told where entries lie, and how far."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.admin.topics.read_plans import without
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.rest import create_app
from anabranch.broker.security.rights import AllowAll
from anabranch.broker.server import running
from anabranch.client.reading import direct
from anabranch.columns import Pool
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.entry_runs import EntryRuns
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.storage.core.read_plan import TopicPlan, decode, position_text
from anabranch.storage.port import FileRun, ObjectRun
from anabranch.wire.batch import messages
from harness.simple_client import Client, Hidden
from unit.broker.admin.conftest import NOW_MS, Rest, serving

TOPIC = "persistent://public/default/t"
PATH = "/admin/v2/anabranch/read-plan/persistent/public/default/t"


@contextlib.asynccontextmanager
async def on_files(folder: Path, **settings: Any) -> AsyncIterator[Rest]:
    """A broker whose log is in files."""
    config = BrokerConfig(data_dir=str(folder), broker_service_port=0, **settings)
    async with running(config) as broker:
        transport = httpx.ASGITransport(create_app(broker.admin_services(), broker.page))
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
            Client(broker.service_url) as client,
        ):
            yield Rest(http, broker, client)


async def plan_of(rest: Rest, path: str = PATH, **query: str) -> TopicPlan:
    return decode((await rest.call("GET", path, params=query)).content)


def payloads(plan: TopicPlan) -> list[bytes]:
    return [bytes(payload) for _, _, data in direct.plan_entries(plan) for _, payload in messages(data)]


def pieces(plan: TopicPlan) -> list[direct.ReadPiece]:
    return list(direct.plan_batches(plan, Pool(), bytes_max=1 << 20, rows_max=1 << 20))


# -- what is planned


async def test_a_plan_leads_to_every_confirmed_entry(tmp_path: Path) -> None:
    async with on_files(tmp_path) as rest:
        sent = [b"%d" % i for i in range(50)]
        first = (await rest.publish(TOPIC, *sent))[0]
        plan = await plan_of(rest)
        assert payloads(plan) == sent
        assert (plan.topic, plan.start, plan.end) == (TOPIC, first, (first[0], 50))
        assert plan.log_end == plan.end
        assert not plan.has_lost
        assert plan.root == str(tmp_path / "log")
        assert 0 < plan.expires_in_ms < 60_000
        assert plan.message_bytes_max == rest.broker.config.max_message_size


async def test_a_plan_covers_the_positions_asked_for(tmp_path: Path) -> None:
    async with on_files(tmp_path) as rest:
        at = await rest.publish(TOPIC, *[b"%d" % i for i in range(10)])
        plan = await plan_of(rest, start=position_text(at[3]), end=position_text(at[7]))
        assert payloads(plan) == [b"3", b"4", b"5", b"6"]
        assert (plan.start, plan.end) == (at[3], at[7])


async def test_a_plan_ends_at_the_confirmed_end_whatever_is_asked_for(tmp_path: Path) -> None:
    async with on_files(tmp_path) as rest:
        at = await rest.publish(TOPIC, b"1", b"2")
        plan = await plan_of(rest, end=f"{at[0][0]}:100")
        assert payloads(plan) == [b"1", b"2"]
        assert plan.end == plan.log_end == (at[0][0], 2)
        beyond = await plan_of(rest, start=f"{at[0][0]}:2", end=f"{at[0][0]}:100")
        assert (beyond.runs, beyond.end) == ((), beyond.log_end)


async def test_an_empty_topic_has_an_empty_plan(tmp_path: Path) -> None:
    async with on_files(tmp_path) as rest:
        await rest.call("PUT", "/admin/v2/persistent/public/default/t")
        plan = await plan_of(rest)
        assert (plan.runs, plan.files, plan.has_lost) == ((), (), False)


async def test_a_plan_goes_through_the_ledgers_of_earlier_runs(tmp_path: Path) -> None:
    at: list[Position] = []
    for run in range(3):
        async with on_files(tmp_path) as rest:
            at += await rest.publish(TOPIC, *[b"%d.%d" % (run, i) for i in range(4)])
    async with on_files(tmp_path) as rest:
        plan = await plan_of(rest)
        assert payloads(plan) == [b"%d.%d" % (run, i) for run in range(3) for i in range(4)]
        assert len({run.ledger for run in plan.runs}) == 3
        # From the end of one ledger, and beyond the end of another.
        part = await plan_of(rest, start=f"{at[0][0]}:4", end=f"{at[4][0]}:400")
        assert payloads(part) == [b"1.%d" % i for i in range(4)]
        assert part.end == (at[4][0], 400)


async def test_a_plan_too_long_ends_where_the_next_begins(tmp_path: Path) -> None:
    async with on_files(tmp_path) as rest:
        sent = [b"%d" % i + bytes(1000) for i in range(10)]
        # One commit each, so that each is a run of its own.
        at = [(await rest.publish(TOPIC, one))[0] for one in sent]
        found: list[bytes] = []
        start, plans = at[0], 0
        while start <= at[-1]:
            plan = await plan_of(rest, start=position_text(start), maxBytes="2500")
            assert plan.end > start
            found += payloads(plan)
            start, plans = plan.end, plans + 1
        assert found == sent
        assert plans > 2


async def test_a_plan_says_when_entries_it_was_asked_for_are_gone(tmp_path: Path) -> None:
    async with on_files(tmp_path) as rest:
        at = await rest.publish(TOPIC, *[b"%d" % i for i in range(10)])
        log = (await rest.broker.topic(TopicName.parse(TOPIC))).log
        await rest.publish(TOPIC, b"and one more")
        await log.trim(at[4])
        plan = await plan_of(rest, start=position_text(at[2]))
        assert plan.has_lost
        assert payloads(plan)[:2] == [b"4", b"5"]
        assert not (await plan_of(rest, start=position_text(at[4]))).has_lost
        assert not (await plan_of(rest)).has_lost, "the first kept is what was asked for"


async def test_full_files_of_many_entries_are_planned_by_their_index(tmp_path: Path) -> None:
    async with on_files(tmp_path, log_file_bytes=1 << 20) as rest:
        sent = [b"%d " % i + bytes(300) for i in range(8_000)]
        for i in range(0, len(sent), 500):
            await rest.publish(TOPIC, *sent[i : i + 500])
        plan = await plan_of(rest)
        kinds = [run.is_indexed for run in plan.runs]
        assert True in kinds
        assert not kinds[-1], "the file being written has no index yet"
        assert payloads(plan) == sent
        assert [row for piece in pieces(plan) for row in piece.batch["value"].to_pylist()] == sent
        # In parts that end within a file.
        found: list[bytes] = []
        start = plan.start
        while start < plan.end:
            part = await plan_of(rest, start=position_text(start), maxBytes="300000")
            assert part.size_bytes < 300_000 + 500 * 400, "at most one run too much"
            found += payloads(part)
            start = part.end
        assert found == sent


async def test_names_with_slashes_and_signs_are_found(tmp_path: Path) -> None:
    async with on_files(tmp_path) as rest:
        await rest.publish("persistent://public/default/a+b c%", b"1")
        plan = await plan_of(rest, "/admin/v2/anabranch/read-plan/persistent/public/default/a%2Bb%20c%25")
        assert payloads(plan) == [b"1"]


async def test_a_segment_is_planned_before_and_after_it_is_sealed(tmp_path: Path) -> None:
    async with on_files(tmp_path) as rest:
        await rest.call("PUT", "/admin/v2/scalable/public/default/s", params={"numInitialSegments": "1"})
        name = "segment://public/default/s/0000-ffff-0"
        await rest.publish(name, b"1", b"2")
        path = "/admin/v2/anabranch/read-plan/segment/public/default/s/0000-ffff-0"
        assert payloads(await plan_of(rest, path)) == [b"1", b"2"]
        await rest.call("POST", "/admin/v2/scalable/public/default/s/split/0")
        sealed = await plan_of(rest, path)
        assert payloads(sealed) == [b"1", b"2"]
        assert sealed.end == sealed.log_end


# -- a log in an object store


async def test_a_plan_of_objects_leads_to_every_confirmed_entry(tmp_path: Path) -> None:
    url = f"objects://{tmp_path}/objects"
    at: list[Position] = []
    for run in range(3):
        async with on_files(tmp_path / "data", log_url=url) as rest:
            at += await rest.publish(TOPIC, *[b"%d.%d" % (run, i) for i in range(40)])
    async with on_files(tmp_path / "data", log_url=url) as rest:
        await rest.publish(TOPIC, b"the last")
        sent = [b"%d.%d" % (run, i) for run in range(3) for i in range(40)]
        plan = await plan_of(rest)
        assert payloads(plan) == [*sent, b"the last"]
        assert [row for piece in pieces(plan) for row in piece.batch["value"].to_pylist()] == [
            *sent,
            b"the last",
        ]
        assert (plan.in_objects, plan.root, plan.end) == (True, url, plan.log_end)
        assert plan.expires_in_ms > 60_000
        part = await plan_of(rest, start=position_text(at[35]), end=position_text(at[77]))
        assert payloads(part) == sent[35:77]
        # A folder signs nothing: it is read as it is.
        assert (await plan_of(rest, signed="true")).urls == ()
        assert payloads(await plan_of(rest, signed="true", maxBytes="1"))[:1] == [b"0.0"]


async def test_only_super_users_are_told_where_objects_are(tmp_path: Path) -> None:
    config = BrokerConfig(log_url=f"objects://{tmp_path}/objects")
    async with serving(MemoryMetadata(lambda: NOW_MS), config, authorizer=NobodySpecial()) as rest:
        for query in ("", "?signed=true"):
            assert "may not" in await rest.refused("GET", PATH + query, 403)
    off = BrokerConfig(log_url=f"objects://{tmp_path}/objects", log_direct_reads_allowed=False)
    async with serving(MemoryMetadata(lambda: NOW_MS), off) as rest:
        assert "logDirectReadsAllowed" in await rest.refused("GET", f"{PATH}?signed=true", 403)


# -- refusals


class NobodySpecial(AllowAll):
    async def is_super_user(self, role: str) -> bool:
        return False


async def test_only_super_users_are_told(tmp_path: Path) -> None:
    async with serving(MemoryMetadata(lambda: NOW_MS), authorizer=NobodySpecial()) as rest:
        reason = await rest.refused("GET", PATH, 403)
        assert "may not" in reason


async def test_nobody_is_told_where_direct_reads_are_turned_off() -> None:
    config = BrokerConfig(log_direct_reads_allowed=False)
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as rest:
        assert "logDirectReadsAllowed" in await rest.refused("GET", PATH, 403)


async def test_a_log_without_files_has_no_plan(rest: Rest) -> None:
    await rest.publish(TOPIC, b"1")
    assert "in memory" in await rest.refused("GET", PATH, 409)


async def test_a_topic_that_does_not_exist_is_not_made(rest: Rest) -> None:
    await rest.refused("GET", PATH, 404)
    assert await rest.get("/admin/v2/persistent/public/default") == []


@pytest.mark.parametrize("domain", ["topic", "non-persistent"])
async def test_a_name_without_a_log_is_refused(rest: Rest, domain: str) -> None:
    path = f"/admin/v2/anabranch/read-plan/{domain}/public/default/t"
    assert "no log of its own" in await rest.refused("GET", path, 412)


@pytest.mark.parametrize("query", ["start=5", "end=x:y", "maxBytes=0", "maxBytes=many"])
async def test_bad_parameters_are_named(rest: Rest, query: str) -> None:
    reason = await rest.refused("GET", f"{PATH}?{query}", 400)
    assert query.partition("=")[0] in reason


class Elsewhere:
    """Another broker owns everything."""

    def owner(self, topic: TopicName) -> BrokerAddress:
        return BrokerAddress("pulsar://other:6650", "http://other:8080")

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        return self.owner(topic)

    def is_mine(self, topic: TopicName) -> bool:
        return False

    def on_change(self, callback: Any) -> Any:
        return lambda: None


async def test_the_owner_is_named_by_any_other_broker() -> None:
    async with serving(MemoryMetadata(lambda: NOW_MS), owners=Elsewhere()) as rest:
        answer = await rest.call("GET", f"{PATH}?start=1:2", 307)
        assert answer.headers["location"] == f"http://other:8080{PATH}?start=1:2"


async def test_what_is_being_written_is_planned_only_once_it_is_confirmed(tmp_path: Path) -> None:
    async with on_files(tmp_path) as rest:
        await rest.publish(TOPIC, b"first")
        producer = await rest.client.producer(TOPIC)
        seen: list[int] = []

        async def write() -> None:
            for _ in range(20):
                receipts = [await producer.send(b"more") for _ in range(20)]
                await asyncio.gather(*receipts)

        writing = asyncio.create_task(write())
        log = (await rest.broker.topic(TopicName.parse(TOPIC))).log
        while not writing.done():
            before = log.confirmed_end
            plan = await plan_of(rest)
            after = log.confirmed_end
            assert before <= plan.end[1] <= after
            assert len(payloads(plan)) == plan.end[1]
            seen.append(plan.end[1])
        await writing
        assert seen
        await producer.close()


# -- what nobody is to see


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.sets(st.integers(0, 30)),
)
def test_runs_without_dropped_entries_hold_the_others_at_their_places(
    sizes: list[int], gone: set[int]
) -> None:
    runs, at = [], 2
    for size in sizes:
        offsets = [10 * n for n in range(at, at + size)]
        runs.append(FileRun("f", at, offsets, [n + 1 for n in offsets]))
        at += size
    dropped = [(run[1], run[2]) for run in EntryRuns.of((0, n, n + 1) for n in gone)]
    found = [
        (run.first + n, offset, length)
        for run in without(runs, dropped)
        for n, (offset, length) in enumerate(zip(run.offsets, run.lengths, strict=True))
    ]
    assert found == [(n, 10 * n, 10 * n + 1) for n in range(2, at) if n not in gone]


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.sets(st.integers(0, 30)),
)
def test_runs_of_objects_keep_their_places_without_dropped_entries(sizes: list[int], gone: set[int]) -> None:
    """The reader finds the others among them."""
    runs, at = [], 2
    for object_, size in enumerate(sizes):
        runs.append(ObjectRun(f"{object_}", at, at + size, 100, 10 * size))
        at += size
    dropped = [(run[1], run[2]) for run in EntryRuns.of((0, n, n + 1) for n in gone)]
    left = without(runs, dropped)
    found = [(run.key, n, run.offset, run.length) for run in left for n in range(run.first, run.end)]
    expected = [
        (run.key, n, run.offset, run.length)
        for run in runs
        for n in range(run.first, run.end)
        if n not in gone
    ]
    assert found == expected


@pytest.mark.parametrize("kind", ["files", "objects"])
async def test_a_plan_leaves_out_what_lost_and_stops_before_what_is_open(tmp_path: Path, kind: str) -> None:
    settings = {"log_url": f"objects://{tmp_path}/objects"} if kind == "objects" else {}
    async with on_files(tmp_path / "data", **settings) as rest:
        producers = {
            letter: await rest.client.producer(TOPIC, hidden=Hidden("job", batch, letter * 32))
            for letter, batch in (("a", 0), ("b", 0), ("c", 1))
        }
        places = [
            await (await producers[letter].send(b"%d %s" % (n, letter.encode())))
            for n, letter in enumerate("abbaabacab")
        ]
        assert (await plan_of(rest)).runs == ()
        await rest.broker.write_records.decide(WriteBatch("job", 0), ["a" * 32], [])
        await (await rest.broker.topic(TopicName.parse(TOPIC))).hidden.reveal(WriteBatch("job", 0))
        plan = await plan_of(rest)
        assert payloads(plan) == [b"0 a", b"3 a", b"4 a", b"6 a"]
        assert plan.log_end == places[7]
        part = await plan_of(rest, start=position_text(places[1]), end=position_text(places[5]))
        assert payloads(part) == [b"3 a", b"4 a"]


async def test_the_bytes_of_objects_count_once_however_many_entries_are_left_out(tmp_path: Path) -> None:
    """They are read once: a plan is as long as without what is left out."""
    async with on_files(tmp_path / "data", log_url=f"objects://{tmp_path}/objects") as rest:
        a, b = [
            await rest.client.producer(TOPIC, hidden=Hidden("job", 0, letter * 32)) for letter in ("a", "b")
        ]
        sent = [await (a, b)[n % 2].send(b"%d" % n) for n in range(60)]
        await asyncio.gather(*sent)
        await rest.broker.write_records.decide(WriteBatch("job", 0), ["a" * 32], [])
        await (await rest.broker.topic(TopicName.parse(TOPIC))).hidden.reveal(WriteBatch("job", 0))
        plan = await plan_of(rest)
        size = sum({(run.file, run.offset): run.length for run in plan.runs}.values())
        assert size < plan.size_bytes / 5
        whole = await plan_of(rest, maxBytes=str(size + 1))
        assert payloads(whole) == payloads(plan) == [b"%d" % n for n in range(0, 60, 2)]


async def test_a_partition_that_was_there_before_its_topic_is_planned_under_the_topics_id(
    tmp_path: Path,
) -> None:
    async with on_files(tmp_path) as rest:
        name = TopicName.parse("persistent://public/default/p")
        await rest.publish(str(name.partition(0)), b"early")
        await rest.call("PUT", "/admin/v2/persistent/public/default/p/partitions", 204, json=1)
        present = await rest.broker.resources.classic_id(name)
        path = "/admin/v2/anabranch/read-plan/persistent/public/default/p-partition-0"
        assert payloads(await plan_of(rest, path, topicId=present)) == [b"early"]
        await rest.call("GET", path, 412, params={"topicId": "0" * 32})


async def test_a_log_whose_old_files_were_moved_is_planned_in_parts_of_one_kind(tmp_path: Path) -> None:
    url = f"objects://{tmp_path}/old"
    settings = {
        "log_tier_url": f"file://{tmp_path}/old",
        "log_tier_local_bytes": 1,
        "log_file_bytes": 1 << 20,
    }
    async with on_files(tmp_path / "data", **settings) as rest:
        sent = [b"%d:" % i + bytes(50_000) for i in range(80)]
        at = await rest.publish(TOPIC, *sent)
        # The broker's own pass may have the turn, and then this one moves nothing.
        while not rest.broker.log.stats()["tier_objects"]:
            await rest.broker.log.reclaim()

        kinds: list[tuple[bool, str]] = []

        async def all_from(position: Position, root: str | None = None) -> list[bytes]:
            found: list[bytes] = []
            while True:
                plan = await plan_of(rest, start=position_text(position))
                kinds.append((plan.in_objects, plan.root))
                for _, _, data in direct.plan_entries(plan, root=root):
                    found += [bytes(payload) for _, payload in messages(data)]
                if plan.end == plan.log_end:
                    return found
                position = plan.end

        assert await all_from(at[0]) == sent
        assert kinds == [(True, url), (False, str(tmp_path / "data" / "log"))]
        assert await all_from(at[7]) == sent[7:]
        # A caller's root is of one of the kinds.
        assert await all_from(at[0], root=str(tmp_path / "data" / "log")) == sent
        assert await all_from(at[0], root=url) == sent
