"""The scripts of `anabranch completion`, run in their shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from anabranch.cli.main import main


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    shell: str = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    # zsh finds it by its name.
    path = tmp_path / "_anabranch"
    path.write_text(capsys.readouterr().out)
    return path


def run(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("anabranch tena", ["tenants"]),
        ("anabranch topics update", ["update-partitions"]),
        ("anabranch topics --admin-url http://x create --par", ["--partitions"]),
        ("anabranch topics policy set t --max-seg", ["--max-segments"]),
        ("anabranch completion z", ["zsh"]),
    ],
)
def test_bash_completes_commands_actions_and_options(script: Path, typed: str, expected: list[str]) -> None:
    words = typed.split()
    ask = (
        f'source "{script}"; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _anabranch; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert run("bash", "--norc", "-c", ask)[:-1] == expected


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_reads_it_and_knows_the_words_of_a_place(script: Path) -> None:
    ask = (
        f'compdef() {{ : }}; source "{script}"; typeset -a choices; '
        '_anabranch_words "topics policy"; print -l -- "${choices[@]}"'
    )
    assert [line.partition(":")[0] for line in run("zsh", "-f", "-c", ask)[:-1]] == [
        "-h",
        "--help",
        "--admin-url",
        "--json",
        "--token",
        "--auth-token",
        "--user",
        "--tls-trust-certs",
        "--tls-cert",
        "--tls-key",
        "--tls-allow-insecure",
        "get",
        "set",
        "remove",
    ]


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes_commands_actions_and_options(script: Path) -> None:
    for typed, expected in (("anabranch tena", "tenants"), ("anabranch topics update", "update-partitions")):
        found = run("fish", "--no-config", "-c", f'source "{script}"; complete -C "{typed}"')
        assert [line.partition("\t")[0] for line in found if line] == [expected]
    found = run(
        "fish", "--no-config", "-c", f'source "{script}"; complete -C "anabranch topics create t --par"'
    )
    assert [line.partition("\t")[0] for line in found if line] == ["--partitions"]
