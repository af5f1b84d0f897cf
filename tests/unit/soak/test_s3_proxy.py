"""The proxy passes requests on as they are, and does to them what the weather says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from soak.s3_proxy import NOTHING, PUTS, S3Proxy, Weather, drawn

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.object.medium import Created, MediumError
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.obstore_medium import open_medium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.on_disk.moving import TierPolicy
from anabranch.storage.tier.object_tier import open_tier
from harness.small_s3 import SmallS3
from unit.storage.owners import Owner

pytest.importorskip("obstore")
FINE = Weather(puts=NOTHING, gets=NOTHING)


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SmallS3, S3Proxy, str]]:
    """A store, the proxy before it, and the URL of a prefix through the proxy."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    small = SmallS3()
    proxy = S3Proxy(await small.start(), FINE)
    port = await proxy.start()
    yield small, proxy, f"s3://bucket/some?endpoint=http://127.0.0.1:{port}&region=us-east-1"
    await proxy.close()
    await small.close()


def test_latencies_are_between_the_quantiles() -> None:
    assert [drawn(PUTS, share) for share in (0.0, 0.5, 0.99)] == [0.015, 0.040, 0.300]
    assert drawn(PUTS, 0.25) == pytest.approx(0.0275)
    assert 0.3 < drawn(PUTS, 0.999) < 1.0


async def test_requests_pass_as_they_are(store: tuple[SmallS3, S3Proxy, str]) -> None:
    small, proxy, url = store
    medium = open_medium(url)
    body = bytes(range(256)) * 4096
    assert await medium.create("a/b c", [body]) is Created.STORED
    assert await medium.create("a/b c", [b"other"]) is Created.EXISTS
    assert bytes(await medium.get("a/b c")) == body
    assert bytes(await medium.get("a/b c", 1000, 70_000)) == body[1000:71_000]
    await medium.create("a/d", [b"2"])
    assert await medium.list("a") == [("a/b c", len(body)), ("a/d", 1)]
    await medium.delete(["a/b c", "a/d"])
    assert small.objects == {}
    assert proxy.done["PUT"] == 3
    assert proxy.done["GET"] == 3


async def test_bad_weather_is_met(store: tuple[SmallS3, S3Proxy, str]) -> None:
    small, proxy, url = store
    medium = open_medium(url)
    for weather, answer, is_there in (
        (Weather(NOTHING, NOTHING, lost=1), Created.UNKNOWN, True),
        (Weather(NOTHING, NOTHING, busy=1), Created.UNKNOWN, False),
        (Weather(NOTHING, NOTHING, cut=1), Created.UNKNOWN, False),
        # The library cannot tell a conflict from an object that exists.
        (Weather(NOTHING, NOTHING, conflict=1), Created.EXISTS, False),
    ):
        proxy.weather = weather
        small.objects.clear()
        assert await medium.create("a", [b"some bytes"]) is answer
        assert bool(small.objects) == is_there
    proxy.weather = FINE
    await proxy.away(True)
    assert await medium.create("a", [b"x"]) is Created.UNKNOWN
    await proxy.away(False)
    assert await medium.create("a", [b"x"]) is Created.STORED


async def test_a_log_behind_it_loses_nothing_in_bad_weather(store: tuple[SmallS3, S3Proxy, str]) -> None:
    _, proxy, url = store
    policy = ObjectLogPolicy(puts_per_second=0, retry_seconds=0.001, retry_seconds_max=0.01)
    log = ObjectLogStore(open_medium(url), clock_ms=lambda: 1, incarnation=Incarnation("one"), policy=policy)
    await log.start()
    proxy.weather = Weather(NOTHING, NOTHING, busy=0.1, conflict=0.1, lost=0.1, cut=0.1)
    owner = Owner()
    writer = log.open_ledger(LedgerId(1), owner, "ns")
    for n in range(40):
        writer.append(b"entry %d" % n, 1)
        await owner.until(n + 1)
    proxy.weather = FINE
    heir = ObjectLogStore(open_medium(url), clock_ms=lambda: 1, incarnation=Incarnation("two"), policy=policy)
    await heir.start()
    assert (await heir.take(Incarnation("one"), None))[LedgerId(1)].entries_end == 40
    found = await heir.read(LedgerId(1), Incarnation("one"), 0, 40, 100, 1 << 20)
    assert [bytes(data) for _, _, data in found] == [b"entry %d" % n for n in range(40)]
    assert {"lost", "503", "409", "cut"} <= set(proxy.done)
    for one in (heir, log):
        await one.close()


async def test_files_move_through_it_and_are_read_when_it_is_back(
    store: tuple[SmallS3, S3Proxy, str], tmp_path: Path
) -> None:
    small, proxy, url = store
    policy = ObjectLogPolicy(retry_seconds=0.001, retry_seconds_max=0.01)
    log = FileLogStore(
        tmp_path,
        clock_ms=lambda: 1,
        file_bytes=64 << 10,
        cache_bytes=1 << 10,
        tier=open_tier(url, policy),
        tier_policy=TierPolicy(0, small_bytes=0, retry_seconds=0.1),
    )
    await log.start()
    owner = Owner()
    writer = log.open_ledger(LedgerId(1), owner, "ns")
    texts = [b"entry %d" % n + bytes(1000) for n in range(200)]
    for n, text in enumerate(texts):
        writer.append(text, 1)
        await owner.until(n + 1)
    log.retain([])
    await log.reclaim()
    # By the process that moves files, with requests as S3 has them.
    assert len(small.objects) == log.stats()["tier_objects"] > 0
    await proxy.away(True)
    with pytest.raises((MediumError, TimeoutError)):
        await asyncio.wait_for(log.read(LedgerId(1), log.incarnation, 0, 200, 10, 1 << 20), 1)
    await proxy.away(False)
    first = 0
    while first < 200:
        for number, _, data in await log.read(LedgerId(1), log.incarnation, first, 200, 50, 1 << 20):
            assert (number, bytes(data)) == (first, texts[first])
            first += 1
    await log.close()
