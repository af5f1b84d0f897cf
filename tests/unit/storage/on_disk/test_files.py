"""What the log's calls on a real file system leave behind."""

from __future__ import annotations

import gc
import logging
import mmap
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anabranch.storage.on_disk.files import OsFiles


def descriptor_used_next() -> int:
    """Systems hand out the lowest number that is free."""
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    return fd


def test_mapped_files_keep_no_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789" * 1000)
    before = descriptor_used_next()
    views = [OsFiles().map(path, 10, 20) for _ in range(50)]
    assert descriptor_used_next() == before
    assert all(bytes(view) == b"01234567890123456789" for view in views)


def test_a_slice_keeps_its_mapping_after_the_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    start = mmap.ALLOCATIONGRANULARITY + 5
    path.write_bytes(bytes(start) + b"what is looked for" + bytes(100))
    found = OsFiles().map(path, start, 50)[:18]
    path.unlink()
    gc.collect()
    assert found.readonly
    assert bytes(found) == b"what is looked for"


def test_what_cannot_be_mapped_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        OsFiles().map(tmp_path / "none", 0, 10)
    with pytest.raises(OSError, match=r"No such device|Invalid argument|Bad file"):
        OsFiles().map(tmp_path, 0, 10)


def test_who_finds_no_descriptor_waits_until_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: told.set()  # type: ignore[method-assign]
    logging.getLogger("anabranch.storage.on_disk.files").addHandler(handler)
    with ThreadPoolExecutor(1) as threads:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor_used_next(), hard))
            found = threads.submit(OsFiles().list, tmp_path)
            assert told.wait(10)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            logging.getLogger("anabranch.storage.on_disk.files").removeHandler(handler)
        assert found.result(10) == ["file"]
