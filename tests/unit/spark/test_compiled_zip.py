"""What `python -m anabranch.spark.compiled_zip` makes of a zip file of modules, as Python then imports from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from anabranch.spark import compiled_zip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "some.zip"
    with ZipFile(path, "w") as file:
        file.writestr("lot/__init__.py", "from lot.part import value\n")
        file.writestr("lot/part.py", "value = 7\n")
        file.writestr("lot/tests/test_part.py", "assert 1 is 2\n")
        file.writestr("lot/readme.txt", "not a module")
    return path


def imported(path: Path) -> list[str]:
    """What a new Python finds in it, and the file that the module came from."""
    program = "import lot, lot.part; print(lot.value, lot.part.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_modules_are_imported_without_being_compiled_again(path: Path) -> None:
    assert imported(path) == ["7", str(path / "lot/part.py")]
    assert compiled_zip.add_compiled(path) == 2
    assert imported(path) == ["7", str(path / "lot/part.pyc")]


def test_a_second_time_changes_nothing(path: Path) -> None:
    compiled_zip.add_compiled(path)
    before = path.read_bytes()
    assert compiled_zip.add_compiled(path) == 0
    assert path.read_bytes() == before


def test_what_was_there_stays_where_it_was(path: Path) -> None:
    """A Python that has opened the file before goes on reading it by the places it knows."""

    def places() -> dict[str, int]:
        with ZipFile(path) as file:
            return {one.filename: one.header_offset for one in file.infolist()}

    before = places()
    compiled_zip.add_compiled(path)
    after = places()
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"lot/__init__.pyc", "lot/part.pyc"}
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_python_of_another_version_reads_the_sources(path: Path) -> None:
    with ZipFile(path, "a") as file:
        file.writestr("lot/part.pyc", b"\0\0\r\n" + bytes(40))
    assert imported(path) == ["7", str(path / "lot/part.py")]


def test_it_finds_pysparks_own() -> None:
    found = compiled_zip.find()
    assert found is not None
    with ZipFile(found) as file:
        assert "pyspark/worker.py" in file.namelist()


def test_a_file_that_cannot_be_written_stays_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = path.read_bytes()
    monkeypatch.setattr(compiled_zip, "find", lambda: path)
    monkeypatch.setattr(Path, "replace", _refused)
    assert compiled_zip.main() == 1
    assert "stays as it is: read-only" in capsys.readouterr().err
    assert path.read_bytes() == before


def _refused(path: Path, target: Path) -> Path:
    raise OSError(f"read-only: {target.name}")
