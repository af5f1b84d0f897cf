"""A log of very many objects: looking through it keeps nobody waiting, and finds the same as a plain look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.position import Incarnation
from anabranch.storage.object.blocks import BlockCache
from anabranch.storage.object.core.choice import ObjectFacts, RewriteCandidates, RewritePolicy
from anabranch.storage.object.core.maps import MapNote, MappedLedger, decode_map, encode_map
from anabranch.storage.object.core.objects import LogKeys
from anabranch.storage.object.indexing import LogIndex
from anabranch.storage.object.log_space import LogSpace, SpaceFigures, SpaceView
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.places import EntryPlaces, MovedRun
from anabranch.storage.object.requests import CountingMedium
from unit.storage.object.test_ended_logs import POLICY

# A day of ten commits a second has four times as many.
OBJECTS = 200_000
TURN_MAX_S = 0.05
LEDGER = 7


async def longest_turn(work: Callable[[], Awaitable[object]]) -> float:
    """The processor time of the longest turn of the loop until the work is done."""
    found = 0.0

    async def watch() -> None:
        nonlocal found
        while True:
            began = time.process_time()
            await asyncio.sleep(0)
            found = max(found, time.process_time() - began)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await work()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return found


def long_log(dead: int) -> EntryPlaces:
    """An entry of one ledger in each object, but in the last ones, in which nothing is wanted."""
    places = EntryPlaces()
    for number in range(1, OBJECTS - dead + 1):
        places.add(LEDGER, number, number, 90_000)
    places.set_sizes(dict.fromkeys(range(1, OBJECTS + 1), 100_000))
    return places


async def test_a_pass_over_very_many_objects_is_made_in_turns() -> None:
    dead = OBJECTS // 4
    keys, places = LogKeys(Incarnation("1-a")), long_log(dead)
    medium = CountingMedium(MemoryBucket())
    policy = replace(POLICY, delete_delay_seconds=0, map_states=1)
    space = LogSpace(medium, keys, policy, SpaceFigures())
    view = SpaceView(
        keys, places, lambda _: (0, None), dict, lambda _: True, 1, 1, OBJECTS + 1, has_all=False
    )
    assert await longest_turn(lambda: space.tidy(view, is_thorough=True)) < TURN_MAX_S
    assert len(places.numbers) == OBJECTS - dead
    note = decode_map(await medium.get(keys.map(1)), "the map")
    assert len(note.objects) == 8 * OBJECTS
    assert len(note.ledgers[0].firsts) == 8 * (OBJECTS - dead)


async def test_a_map_of_very_many_objects_is_read_in_turns() -> None:
    incarnation = Incarnation("1-a")
    keys, medium = LogKeys(incarnation), CountingMedium(MemoryBucket())
    packed = long_log(dead=0)
    note = MapNote(
        1, 1, 1, True, *packed.packed_sizes(), {}, [MappedLedger(LEDGER, "a/x", "/t", *packed.packed(LEDGER))]
    )
    await medium.create(keys.map(1), [encode_map(note)])
    index = LogIndex(medium, BlockCache(medium, POLICY), keys, POLICY)
    assert await longest_turn(index.look) < TURN_MAX_S
    assert (index.places.total_bytes, len(index.commits)) == (OBJECTS * 100_000, OBJECTS)
    assert [*index.places.locate(LEDGER, 9, 11)] == [9, 10]


async def test_what_is_wanted_of_a_long_ledger_is_added_up_while_it_is_trimmed() -> None:
    places = long_log(dead=0)
    adding = asyncio.create_task(places.live_bytes(lambda _: (OBJECTS // 2, None)))
    while not adding.done():
        places.trim(LEDGER, OBJECTS // 2)
        await asyncio.sleep(0)
    assert adding.result() == dict.fromkeys(range(OBJECTS // 2, OBJECTS + 1), 90_000)


def test_a_few_runs_of_a_long_ledger_are_exchanged_at_once() -> None:
    places = long_log(dead=0)
    began = time.process_time()
    places.swap(
        {5, 6, OBJECTS}, {LEDGER: [MovedRun(5, 7, 1 << 63, 200), MovedRun(OBJECTS, OBJECTS + 1, 9, 1)]}
    )
    assert time.process_time() - began < TURN_MAX_S
    assert [*places.locate(LEDGER, 4, 8)] == [4, 1 << 63, 7]
    assert [*places.locate(LEDGER, OBJECTS)] == [9]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=30), st.data(), st.integers(0, 20), st.integers(1, 9))
def test_after_an_exchange_every_wanted_entry_is_where_it_lies(
    lengths: Sequence[int], data: st.DataObject, first: int, most: int
) -> None:
    """Against a plain table of entries. Each run is in an object of its own or in that of a neighbour."""
    holds: dict[int, int] = {}
    places, at = EntryPlaces(), 0
    numbers = [data.draw(st.integers(1, 5)) for _ in lengths]
    for length, number in zip(lengths, numbers, strict=True):
        places.add(LEDGER, at, number, length)
        holds |= dict.fromkeys(range(at, at + length), number)
        at += length
    sources = data.draw(st.sets(st.sampled_from(numbers)))
    moved: list[MovedRun] = []
    for entry in range(first, at):
        if holds[entry] not in sources:
            continue
        if moved and moved[-1].end == entry and entry - moved[-1].first < most:
            moved[-1] = moved[-1]._replace(end=entry + 1)
        else:
            # As a rewriter does, a run ends where one of the sources' does, or before.
            moved.append(MovedRun(entry, entry + 1, 100 + len(moved), 1))
    moved = [one for one in moved if one.first in {row.first for row in places.rows_of(LEDGER)} | {first}]
    if sum(one.end - one.first for one in moved) != sum(holds[e] in sources for e in range(first, at)):
        return  # A run was cut within one of its sources, as no rewriter does.
    places.swap(sources, {LEDGER: moved})
    where = {entry: one.number for one in moved for entry in range(one.first, one.end)}
    for entry in range(first, at):
        assert next(places.locate(LEDGER, entry)) == where.get(entry, holds[entry])
    firsts = [row.first for row in places.rows_of(LEDGER)]
    assert firsts == sorted(set(firsts))


facts = st.lists(
    st.builds(
        ObjectFacts, st.integers(1, 99), st.integers(1, 2000), st.integers(1, 900), st.sampled_from("-ab")
    ),
    max_size=60,
    unique_by=lambda one: one.number,
)


@given(facts, st.booleans(), st.integers(1, 12))
def test_the_job_is_that_of_all_candidates_however_few_are_kept(
    objects: list[ObjectFacts], thorough: bool, sources_max: int
) -> None:
    policy = RewritePolicy(
        object_waste_min=1, waste_bytes=3000, live_bytes_max=1500, sources_max=sources_max, object_bytes=8000
    )
    candidates = RewriteCandidates(policy)
    for one in objects:
        candidates.add(one)
    in_order = sorted(objects, key=lambda one: one.number)
    dead = [one for one in in_order if 2 * one.live < one.size and one.waste >= 256]
    if dead and (thorough or sum(one.waste for one in dead) >= 3000):
        wanted = dead
    else:
        crowds = [[one for one in in_order if one.namespace == name and one.size < 1000] for name in "-ab"]
        wanted = next(
            (
                one
                for one in crowds
                if len(one) >= 8 and sources_max > 1 and one[0].live + one[1].live <= 1500
            ),
            [],
        )
    job = candidates.job(is_thorough=thorough)
    assert job == wanted[: len(job)]
    assert bool(job) == bool(wanted)
    live = sum(one.live for one in job)
    assert len(job) <= sources_max
    assert live <= 1500 or len(job) == 1
    assert len(job) in (len(wanted), sources_max) or live + wanted[len(job)].live > 1500
