"""What is missing for Spark is told by name, with the way out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from anabranch.pipelines.session import JAVA_HELP, NoSpark, missing, missing_packages, session


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for name in ("numpy", "pyarrow", "pyspark"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert missing_packages() == "this needs numpy, pyarrow, pyspark: pip install 'anabranch[spark]'"


def test_a_missing_java_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing() == JAVA_HELP
    with pytest.raises(NoSpark, match="apt install openjdk"), session("nothing"):
        pass


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    why = missing()
    assert why is not None
    assert str(tmp_path) in why
