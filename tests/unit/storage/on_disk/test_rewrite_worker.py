"""The process that rewrites files."""

from __future__ import annotations

import os
from pathlib import Path

import anabranch
from anabranch.storage.on_disk.rewrite_worker import WORKER_PATH


def test_the_worker_finds_the_package_of_its_broker_first() -> None:
    first = Path(WORKER_PATH.split(os.pathsep)[0])
    assert first / "anabranch" == Path(anabranch.__file__).resolve().parent
