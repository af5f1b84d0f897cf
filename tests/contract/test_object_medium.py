"""What every `ObjectMedium` must do. Each adapter adds itself to `MEDIA` and runs all of it."""

from __future__ import annotations

import asyncio
import secrets
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from anabranch.storage.object.hostile import HostileMedium, Hostility
from anabranch.storage.object.medium import (
    Created,
    MediumError,
    MediumMissingError,
    MediumRefusedError,
    ObjectMedium,
)
from anabranch.storage.object.memory_bucket import MemoryBucket
from anabranch.storage.object.obstore_medium import open_medium
from anabranch.storage.object.probe import probe
from anabranch.storage.port import Buffer
from harness.minio import bucket_url

NO_FAULTS = Hostility(lost_answer=0, late=0, never=0, conflict=0, failed_read=0)

MEDIA: dict[str, Callable[[Path], ObjectMedium]] = {
    "memory": lambda _: MemoryBucket(),
    # Slow and reordered. What it loses is not for every caller to see: see the log's own suite.
    "hostile": lambda _: HostileMedium(MemoryBucket(), Random(1), NO_FAULTS),
    "folder": lambda folder: open_medium(f"objects://{folder}/objects"),
    "minio": lambda _: open_medium(bucket_url(f"medium-{secrets.token_hex(8)}")),
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.objects if name == "minio" else ()) for name in sorted(MEDIA)
    ]
)
async def medium(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectMedium]:
    made = MEDIA[request.param](tmp_path)
    yield made
    await made.close()


async def test_what_was_created_is_read_back(medium: ObjectMedium) -> None:
    parts: list[Buffer] = [b"bytes ", bytearray(b"bytearray "), memoryview(b"a view")]
    assert await medium.create("a/1", parts) is Created.STORED
    assert bytes(await medium.get("a/1")) == b"bytes bytearray a view"
    assert await medium.create("a/one", [memoryview(b"one part")]) is Created.STORED
    assert bytes(await medium.get("a/one")) == b"one part"


async def test_an_object_is_created_once(medium: ObjectMedium) -> None:
    assert await medium.create("a/1", [b"first"]) is Created.STORED
    assert await medium.create("a/1", [b"second"]) is Created.EXISTS
    assert bytes(await medium.get("a/1")) == b"first"


async def test_one_of_many_simultaneous_creations_wins(medium: ObjectMedium) -> None:
    made = await asyncio.gather(*(medium.create("a/1", [b"%d" % n]) for n in range(16)))
    assert made.count(Created.STORED) == 1
    assert bytes(await medium.get("a/1")) == b"%d" % made.index(Created.STORED)


async def test_ranges_end_with_the_object(medium: ObjectMedium) -> None:
    await medium.create("a/1", [bytes(range(100))])
    assert bytes(await medium.get("a/1", 10, 5)) == bytes(range(10, 15))
    assert bytes(await medium.get("a/1", 90, 50)) == bytes(range(90, 100))
    assert bytes(await medium.get("a/1", 40)) == bytes(range(40, 100))
    with pytest.raises(MediumError):
        await medium.get("a/1", 100, 1)


async def test_what_is_not_there_is_missing(medium: ObjectMedium) -> None:
    with pytest.raises(MediumMissingError):
        await medium.get("a/1")
    with pytest.raises(MediumMissingError):
        await medium.get("a/1", 0, 10)
    assert await medium.list("a") == []


async def test_an_empty_object_is_one(medium: ObjectMedium) -> None:
    assert await medium.create("a/1", [b""]) is Created.STORED
    assert await medium.create("a/1", [b""]) is Created.EXISTS
    assert bytes(await medium.get("a/1")) == b""
    assert await medium.list("a") == [("a/1", 0)]


async def test_lists_are_sorted_and_have_the_folder_only(medium: ObjectMedium) -> None:
    for n in (3, 1, 12, 2):
        await medium.create(f"a/b/{n:03d}", [b"x" * n])
    await medium.create("a/bc/1", [b"another folder"])
    await medium.create("a/c", [b"beside it"])
    assert await medium.list("a/b") == [("a/b/001", 1), ("a/b/002", 2), ("a/b/003", 3), ("a/b/012", 12)]
    assert await medium.list("a/b", after="a/b/002") == [("a/b/003", 3), ("a/b/012", 12)]
    assert [key for key, _ in await medium.list("a")] == [
        *(f"a/b/{n:03d}" for n in (1, 2, 3, 12)),
        "a/bc/1",
        "a/c",
    ]


async def test_a_list_of_many_is_whole(medium: ObjectMedium) -> None:
    names = [f"many/{n:05d}" for n in range(1100)]
    for at in range(0, len(names), 100):
        await asyncio.gather(*(medium.create(name, [b""]) for name in names[at : at + 100]))
    assert [key for key, _ in await medium.list("many")] == names
    await medium.delete(names)
    assert await medium.list("many") == []


async def test_what_was_deleted_is_missing_and_may_be_created(medium: ObjectMedium) -> None:
    await medium.create("a/1", [b"one"])
    await medium.create("a/2", [b"two"])
    await medium.delete(["a/1", "a/never"])
    with pytest.raises(MediumMissingError):
        await medium.get("a/1")
    assert [key for key, _ in await medium.list("a")] == ["a/2"]
    assert await medium.create("a/1", [b"again"]) is Created.STORED
    await medium.delete([])


async def test_the_probe_accepts_it_and_leaves_nothing(medium: ObjectMedium) -> None:
    await probe(medium)
    assert await medium.list("probe") == []


async def test_a_signed_url_reads_the_object_where_the_store_signs(medium: ObjectMedium) -> None:
    await medium.create("a/1", [b"for anybody with the URL"])
    try:
        url = await medium.sign("a/1", 60)
    except MediumRefusedError:
        assert not medium.url("a/1").startswith("s3:")
        return

    def read() -> bytes:
        with urllib.request.urlopen(url, timeout=15) as answer:
            found: bytes = answer.read()
            return found

    assert await asyncio.to_thread(read) == b"for anybody with the URL"
    assert medium.url("a/1").endswith("/a/1")


class Sloppy(MemoryBucket):
    """Imitations of a store, each with one promise broken."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    async def create(self, key: str, parts: Sequence[Buffer]) -> Created:
        if self.what == "overwrites":
            self.objects[key] = b"".join(parts)
            return Created.STORED
        if self.what == "overwrites, and says that it does not":
            was = await super().create(key, parts)
            self.objects[key] = b"".join(parts)
            return was
        if self.what == "never answers":
            return Created.UNKNOWN
        return await super().create(key, parts)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        if self.what == "ignores ranges":
            return await super().get(key)
        if self.what == "never answers":
            raise MediumError("no answer")
        return await super().get(key, start, length)

    async def list(self, folder: str, after: str = "") -> list[tuple[str, int]]:
        return [] if self.what == "lists late" else await super().list(folder, after)

    async def delete(self, keys: Sequence[str]) -> None:
        if self.what != "keeps":
            await super().delete(keys)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("overwrites", "ignores conditions"),
        ("overwrites, and says that it does not", "ignores conditions|change it"),
        ("ignores ranges", "range"),
        ("lists late", "list"),
        ("keeps", "deleted"),
    ],
)
async def test_the_probe_refuses_a_store_that_breaks_a_promise(what: str, told: str) -> None:
    with pytest.raises(MediumRefusedError, match=told):
        await probe(Sloppy(what), retry_seconds=0)


async def test_a_store_that_does_not_answer_is_not_refused_for_good() -> None:
    with pytest.raises(MediumError) as failed:
        await probe(Sloppy("never answers"), retry_seconds=0)
    assert not isinstance(failed.value, MediumRefusedError)


@pytest.mark.parametrize("seed", range(20))
async def test_the_probe_accepts_a_good_store_on_a_bad_day(seed: int) -> None:
    medium = HostileMedium(MemoryBucket(), Random(seed), Hostility(0.1, 0.1, 0.05, 0.1, 0.1))
    await probe(medium, retry_seconds=0)
    await medium.close()


async def test_a_hostile_medium_does_all_that_it_should() -> None:
    medium = HostileMedium(MemoryBucket(), Random(3))
    made = await asyncio.gather(*(medium.create(f"a/{n % 150}", [b"%d" % n]) for n in range(300)))
    await medium.close()
    assert {"conflict", "never", "late", "lost answer", "stored late", "refused late"} <= medium.done.keys()
    assert set(made) == set(Created)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://", "bucket"),
        ("gs://bucket/prefix", "expected s3"),
        ("bucket/prefix", "expected s3"),
        ("s3://key:secret@bucket/prefix", "AWS_ACCESS_KEY_ID"),
        ("s3://bucket/a//b", "empty"),
        ("s3://bucket/a/../b", "names"),
        ("s3://bucket/prefix?endpont=http://localhost", "unknown option endpont"),
        ("s3://bucket/prefix?endpoint=localhost:9000", "URL itself"),
        ("s3://bucket/prefix?virtual-hosted=yes", "true or false"),
        ("objects://host/folder", "objects:///folder"),
        ("objects:///", "objects:///folder"),
        ("file:///folder", "expected s3"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_the_reason(url: str, told: str) -> None:
    with pytest.raises(MediumRefusedError, match=told) as refused:
        open_medium(url)
    assert "secret" not in str(refused.value)
