"""The verbs of a table's file system, on this machine."""

from __future__ import annotations

from pathlib import Path

from anabranch.pipelines.table_files import LocalFiles
from harness.files_contract import check_contract


def test_local_folders_keep_the_contract(tmp_path: Path) -> None:
    check_contract(LocalFiles(), str(tmp_path))
