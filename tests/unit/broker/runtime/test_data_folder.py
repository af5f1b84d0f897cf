"""Log and metadata of a folder: one without the other is refused, and left as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.broker.runtime import data_folder as belonging
from anabranch.broker.runtime.data_folder import NotTogether, check_log, check_metadata
from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.port import MetadataStore


@pytest.fixture
async def metadata() -> MetadataStore:
    return await MemoryMetadata(lambda: 0).connect()


def identity(data: Path) -> Path:
    return data / belonging.LOG / belonging.FILE


async def test_the_first_start_names_both_and_later_ones_find_them(
    tmp_path: Path, metadata: MetadataStore
) -> None:
    await check_log(metadata, tmp_path)
    name = identity(tmp_path).read_text()
    assert name.strip()
    await check_log(metadata, tmp_path)
    assert identity(tmp_path).read_text() == name


async def test_a_start_that_was_interrupted_between_them_is_finished(
    tmp_path: Path, metadata: MetadataStore
) -> None:
    identity(tmp_path).parent.mkdir()
    identity(tmp_path).write_text("given\n")
    await check_log(metadata, tmp_path)
    stored = await metadata.get(belonging.IDENTITY)
    assert stored is not None
    assert stored.value == b"given"


@pytest.mark.parametrize(("instead", "said"), [(None, "is missing"), ("other", "identity says other")])
async def test_metadata_without_its_log_is_refused_until_somebody_gives_the_messages_up(
    tmp_path: Path, metadata: MetadataStore, instead: str | None, said: str
) -> None:
    await check_log(metadata, tmp_path)
    name = identity(tmp_path).read_text().strip()
    if instead is None:
        identity(tmp_path).unlink()
    else:
        identity(tmp_path).write_text(instead)
    for _ in range(2):
        with pytest.raises(NotTogether, match=said) as refused:
            await check_log(metadata, tmp_path)
    assert f"put {name} into {identity(tmp_path)}" in str(refused.value)
    identity(tmp_path).write_text(name)
    await check_log(metadata, tmp_path)


def test_a_log_without_its_metadata_is_refused(tmp_path: Path) -> None:
    check_metadata(tmp_path)
    folder = tmp_path / "log" / "wal" / "1-a"
    folder.mkdir(parents=True)
    check_metadata(tmp_path)
    (folder / "00000001.wal").write_bytes(b"")
    with pytest.raises(NotTogether, match=r"metadata\.sqlite is missing"):
        check_metadata(tmp_path)
    (tmp_path / belonging.METADATA).write_bytes(b"")
    check_metadata(tmp_path)
