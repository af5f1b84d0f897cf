"""The scripts of `anabranch completion`, run in their shells."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.cli.demo.process import BrokerProcess
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
        # Options only where one is begun, and values where one is expected.
        ("anabranch topics policy ''", ["get", "set", "remove"]),
        ("anabranch topics create ''", [""]),
        ("anabranch stats --sort ''", ["in", "out", "backlog", "stored", "name"]),
        ("anabranch produce t --compression z", ["zstd", "zlib"]),
        ("anabranch namespaces set-deduplication a/b ''", ["on", "off"]),
        ("anabranch schemas get t --version ''", [""]),
        ("anabranch standalone --config {folder}/_anab", ["{folder}/_anabranch"]),
        ("anabranch standalone --port {folder}/_anab", [""]),
    ],
)
def test_bash_completes_commands_actions_options_and_values(
    script: Path, typed: str, expected: list[str]
) -> None:
    typed = typed.format(folder=script.parent)
    words = typed.split()
    ask = (
        f'source "{script}"; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _anabranch; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert run("bash", "--norc", "-c", ask)[:-1] == [one.format(folder=script.parent) for one in expected]


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ('_anabranch_words "topics policy"', ["get", "set", "remove"]),
        ('_anabranch_words "topics policy"; choices=($flags)', ["-h", "--help", "--admin-url", "--json"]),
        ('_anabranch_values "stats --sort"', ["in", "out", "backlog", "stored", "name"]),
        ('_anabranch_values "stats --top"', [""]),
    ],
)
def test_zsh_reads_it_and_knows_the_words_of_a_place(script: Path, asked: str, expected: list[str]) -> None:
    ask = f'compdef() {{ : }}; source "{script}"; typeset -a choices flags; {asked}; print -l -- "${{choices[@]}}"'
    found = [line.partition(":")[0] for line in run("zsh", "-f", "-c", ask)[:-1]]
    assert found[: len(expected)] == expected
    assert len(found) == len(expected) or "flags" in asked


@pytest.mark.parametrize("script", ["fish"], indirect=True)
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("anabranch tena", ["tenants"]),
        ("anabranch topics update", ["update-partitions"]),
        ("anabranch topics create t --par", ["--partitions"]),
        ("anabranch topics create ", []),
        ("anabranch stats --sort ", ["backlog", "in", "name", "out", "stored"]),
        ("anabranch completion ", ["bash", "fish", "topics", "zsh"]),
        ("anabranch tokens create --sec", ["--secret-key"]),
    ],
)
def test_fish_completes_commands_actions_options_and_values(
    script: Path, typed: str, expected: list[str]
) -> None:
    found = run("fish", "--no-config", "-c", f'source "{script}"; complete -C "{typed}"')
    assert sorted(line.partition("\t")[0] for line in found if line) == expected


@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("anabranch tail comp", ["comp-classic", "comp-scalable", "comp-wide"]),
        ("anabranch topics stats comp-s", ["comp-scalable"]),
        ("anabranch subscriptions create --type queue comp-w", ["comp-wide"]),
        ("anabranch topics policy get comp-s", ["comp-scalable"]),
        # Behind a colon: bash completes words up to it.
        ("anabranch produce topic://public/default/comp", ["//public/default/comp-scalable"]),
        ("anabranch produce persistent://public/default/comp-w", ["//public/default/comp-wide"]),
        ("anabranch tail public/default/comp-w", ["public/default/comp-wide"]),
        ("anabranch tail public/def", ["public/default/"]),
        ("anabranch tail topic://publ", ["//public/"]),
        # The subscription is no topic.
        ("anabranch subscriptions stats comp-wide comp", [""]),
        ("anabranch tenants get comp", [""]),
    ],
)
def test_bash_completes_names_of_topics(
    broker: BrokerProcess, script: Path, typed: str, expected: list[str]
) -> None:
    for name, options in (
        ("comp-classic", []),
        ("comp-wide", ["--partitions", "2"]),
        ("topic://public/default/comp-scalable", []),
    ):
        main(["topics", "create", name, *options, "--admin-url", broker.admin_url])
    words = typed.replace("://", " : //").split()
    ask = (
        f'PATH="{Path(sys.executable).parent}:$PATH"; export ANABRANCH_ADMIN_URL="{broker.admin_url}"; '
        f'source "{script}"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; '
        f'COMP_LINE="{typed}"; COMP_POINT={len(typed)}; _anabranch; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    assert run("bash", "--norc", "-c", ask)[:-1] == expected


def test_completing_without_a_broker_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("", "a/b", "a/b/c", "topic://", "topic://a/b/c", "://", "a b/c d/e"):
        assert main(["completion", "topics", text, "--admin-url", "http://127.0.0.1:1"]) == 0
    assert capsys.readouterr() == ("", "")
