from __future__ import annotations

from anabranch.metadata.port import Changes
from anabranch.metadata.watches import PENDING_PATHS_MAX, WatchTable


async def test_waiting_paths_have_an_end_beyond_which_everything_is_to_be_read() -> None:
    table = WatchTable()
    watch = table.open("/w")
    await anext(watch)
    table.changed(f"/w/{n}" for n in range(PENDING_PATHS_MAX))
    assert len((await anext(watch)).paths) == PENDING_PATHS_MAX
    table.changed(f"/w/{n}" for n in range(PENDING_PATHS_MAX + 1))
    assert await anext(watch) == Changes(everything=True)
    table.changed(["/w/after"])
    assert await anext(watch) == Changes(frozenset({"/w/after"}))


async def test_a_change_reaches_watches_of_every_level_above_it_and_no_other() -> None:
    table = WatchTable()
    above = [table.open(prefix) for prefix in ("/", "/a", "/a/b", "/a/b/c")]
    beside = table.open("/a/bb")
    for watch in (*above, beside):
        await anext(watch)
    table.changed(["/a/b/c"])
    for watch in above:
        assert await anext(watch) == Changes(frozenset({"/a/b/c"}))
    table.changed(["/a/bb"])
    assert await anext(beside) == Changes(frozenset({"/a/bb"}))


async def test_a_closed_watch_hears_nothing_more() -> None:
    table = WatchTable()
    with table.open("/w") as watch:
        await anext(watch)
        table.changed(["/w/a"])
    assert [changes async for changes in watch] == []
