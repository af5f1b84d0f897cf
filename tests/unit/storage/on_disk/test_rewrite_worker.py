"""The process that rewrites files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anabranch
from anabranch.storage.on_disk.rewrite_worker import WORKER_PATH


def test_the_worker_finds_the_package_of_its_broker_first() -> None:
    first = Path(WORKER_PATH.split(os.pathsep)[0])
    assert first / "anabranch" == Path(anabranch.__file__).resolve().parent


def test_a_process_whose_broker_was_killed_ends_without_a_traceback() -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from anabranch.storage.on_disk.rewrite_worker import give; give(sys.stdin.buffer.read())",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(b"done", timeout=60)
    assert (process.returncode, errors) == (0, b"")
