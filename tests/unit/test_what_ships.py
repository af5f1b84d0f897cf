"""What an installation has: docs/decisions/0016-what-ships.md."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import find_packages  # type: ignore[import-untyped]  # It ships no type information.

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "anabranch"


def test_the_wheel_has_the_demo_and_the_backtest_and_not_the_simulator() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = find_packages(
        str(ROOT / "src"), exclude=settings["tool"]["setuptools"]["packages"]["find"]["exclude"]
    )
    assert {"anabranch.cli.demo", "anabranch.cli.demo.core", "anabranch.pipelines.replay"} <= set(found)
    assert [name for name in found if "simulation" in name] == []
    everything = find_packages(str(ROOT / "src"))
    assert {name for name in everything if not name.startswith("anabranch.simulation")} == set(found)


def test_nothing_but_its_own_command_needs_the_simulator() -> None:
    users = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anabranch.simulation")
    }
    assert {path for path in users if not path.startswith("simulation/")} == {"cli/broker/simulate.py"}


def test_where_the_simulator_is_not_installed_the_command_says_where_it_is(tmp_path: Path) -> None:
    shutil.copytree(
        SOURCE, tmp_path / "anabranch", ignore=shutil.ignore_patterns("simulation", "__pycache__")
    )
    ran = subprocess.run(
        [sys.executable, "-m", "anabranch.cli", "simulate"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    assert "Clone the repository" in ran.stderr
    assert "Traceback" not in ran.stderr
