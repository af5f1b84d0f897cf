"""The scripts that see to what the tests need: found, else installed where it may be, else said plainly."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKE_JAVA = "#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17' >&2\n"
FAKE_BROWSER = "#!/bin/sh\necho Chromium 140\n"
# script, the program it sees to, what that program prints
SCRIPTS = [("jre", "java", FAKE_JAVA), ("chromium", "chromium", FAKE_BROWSER)]


def run(script: str, path: Path) -> tuple[int, str]:
    """On a machine that has the programs in `path`, and no other."""
    for tool in ("bash", "sed", "env", "cat", "chmod", "sh"):
        if not (path / tool).exists():
            (path / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    environment: Mapping[str, str] = {"PATH": str(path), "HOME": str(path)}
    done = subprocess.run(
        [str(path / "bash"), str(ROOT / "bin" / script)], env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize(("script", "name", "text"), SCRIPTS)
def test_what_is_there_is_taken_without_a_word(tmp_path: Path, script: str, name: str, text: str) -> None:
    program(tmp_path / name, text)
    program(tmp_path / "id", "#!/bin/sh\necho 0\n")
    assert run(script, tmp_path) == (0, "")


@pytest.mark.parametrize(("script", "name", "text"), SCRIPTS)
def test_what_is_missing_is_installed_from_debian_and_said(
    tmp_path: Path, script: str, name: str, text: str
) -> None:
    program(tmp_path / "id", "#!/bin/sh\necho 0\n")
    (tmp_path / "package").write_text(text)
    program(tmp_path / "apt-cache", "#!/bin/sh\nexit 0\n")
    install = f'case "$*" in *install*) cat {tmp_path}/package > {tmp_path}/{name}; chmod +x {tmp_path}/{name};; esac'
    program(tmp_path / "apt-get", f"#!/bin/sh\n{install}\n")
    code, said = run(script, tmp_path)
    assert code == 0, said
    assert "installing Debian's" in said
    assert os.access(tmp_path / name, os.X_OK)


@pytest.mark.parametrize(("script", "name", "text"), SCRIPTS)
def test_where_nothing_may_be_installed_it_says_what_to_do_and_fails(
    tmp_path: Path, script: str, name: str, text: str
) -> None:
    program(tmp_path / "id", "#!/bin/sh\necho 1000\n")
    program(tmp_path / "apt-get", "#!/bin/sh\nexit 100\n")
    program(tmp_path / "sudo", "#!/bin/sh\nexit 1\n")
    code, said = run(script, tmp_path)
    assert code == 1
    assert "none was found or could be installed" in said
    assert "sudo apt-get install" in said


def test_a_package_that_brings_no_browser_that_starts_is_none(tmp_path: Path) -> None:
    program(tmp_path / "id", "#!/bin/sh\necho 0\n")
    program(tmp_path / "chromium", "#!/bin/sh\necho 'install the snap' >&2\nexit 1\n")
    code, said = run("chromium", tmp_path)
    assert code == 1
    assert "none was found" in said


def test_make_test_sees_to_both(tmp_path: Path) -> None:
    plan = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "bin/jre" in plan
    assert plan.index("bin/chromium") < plan.index("pytest -q -n 2")
