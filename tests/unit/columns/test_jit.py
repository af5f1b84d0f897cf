"""Compiled code is kept in the first place that can be written, and kernels work without any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.columns import jit
from anabranch.columns.jit import find_cache, kernel, places

PRINT_HASH = """
import pyarrow as pa
from anabranch.columns.hashing import hash_keys
print(hash_keys(pa.array(["key"])).tolist())
"""


def run(code: str, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_first_place_that_can_be_written_is_used(tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    found = find_cache(iter([no_folder / "in it", tmp_path / "a", tmp_path / "b"]), "0")
    assert found is not None
    assert found.parent == tmp_path / "a"
    assert not (tmp_path / "b").exists()
    assert find_cache(iter([no_folder]), "0") is None


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert find_cache(iter([open_to_all]), "0") is None


def test_code_of_older_sources_is_removed_once_it_is_long_unused(tmp_path: Path) -> None:
    old, recent = find_cache(iter([tmp_path]), "old"), find_cache(iter([tmp_path]), "recent")
    assert old is not None
    assert recent is not None
    os.utime(old, (1, 1))
    assert find_cache(iter([tmp_path]), "new") is not None
    assert not old.exists()
    assert recent.exists()


def test_the_users_own_choice_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mine, beside, shared, temporary = places()
    assert (mine, shared) == (tmp_path / "mine", tmp_path / "cache" / "anabranch")
    assert beside.name == "__pycache__"
    assert temporary.name.startswith("anabranch-")


def test_code_is_kept_for_the_next_process_and_damage_to_it_does_no_harm(tmp_path: Path) -> None:
    expected = run(PRINT_HASH, NUMBA_CACHE_DIR=str(tmp_path))
    kept = [path for path in tmp_path.rglob("*") if path.suffix in {".nbi", ".nbc"}]
    assert kept
    for path in kept:
        path.write_bytes(b"damaged")
    assert run(PRINT_HASH, NUMBA_CACHE_DIR=str(tmp_path)) == expected


@pytest.mark.parametrize("cache", [jit.CACHE, None], ids=["kept", "not kept"])
def test_a_kernel_works_wherever_its_code_is_or_is_not_kept(
    cache: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "CACHE", cache)

    @kernel
    def add(one: int, other: int) -> int:
        return one + other

    assert add(20, 22) == 42
