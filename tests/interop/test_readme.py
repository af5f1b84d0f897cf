"""The README's blocks run as pasted, in their order, from a shell that knows nothing of this checkout."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.bare_shell import ROOT, BareShell, blocks
from harness.broker_process import until

README = ROOT / "README.md"
DOCS = [README, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").iterdir())]
# What a newcomer types, and what runs it here: its own tests, and this very run.
TWO_COMMANDS = "make demo "

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def the(start: str, *, language: str = "sh") -> str:
    """The one block in which a line starts so."""
    (found,) = [
        text
        for kind, text in blocks(README)
        if kind == language and re.search(rf"^{re.escape(start)}", text, re.M)
    ]
    return found


@pytest.fixture
def shell(tmp_path: Path) -> BareShell:
    return BareShell(tmp_path)


@pytest.fixture
def serving(shell: BareShell) -> Iterator[BareShell]:
    """A first terminal with the README's broker in it, until Ctrl-C."""
    terminal = shell.start(the(".venv/bin/anabranch standalone"))
    try:
        # `make setup` may have something to do.
        until(lambda: _is_served(shell, terminal), within_s=300)
        yield shell
    finally:
        shell.end(terminal, signal.SIGINT)


def _is_served(shell: BareShell, terminal: subprocess.Popen[str]) -> bool:
    assert terminal.poll() is None, terminal.communicate()[0]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{shell.http_port}/admin/v2/brokers/health") as answer:
            return bool(answer.read() == b"ok")
    except OSError:
        return False


def test_the_broker_that_the_readme_starts_ends_cleanly_with_ctrl_c(serving: BareShell) -> None:
    shown = serving.run(f"curl -s http://127.0.0.1:{serving.http_port}/admin/v2/brokers/health")
    assert shown == "ok"


def test_what_was_produced_is_consumed(serving: BareShell) -> None:
    shown = serving.run(the(".venv/bin/anabranch produce greetings"))
    assert "hello\n" in shown
    assert "1 message received" in shown


def test_a_scalable_topic_is_made_split_and_explained(serving: BareShell) -> None:
    shown = serving.run(the(".venv/bin/anabranch topics create --scalable"))
    assert "3 messages stored" in shown
    assert "split" in shown.rpartition("stored")[2]


@pytest.mark.parametrize("start", ["import anabranch", "import pulsar"])
def test_the_programs_of_the_clients_print_what_they_received(serving: BareShell, start: str) -> None:
    shown = serving.run(the(start, language="python"), "python")
    assert "customer-7 b'hello'" in shown


def test_the_package_installs_from_where_it_is(shell: BareShell) -> None:
    text = the("python3 -m venv")
    running = shell.start(f"set -e\n{text}")
    shown, _ = running.communicate(timeout=380)
    if running.returncode and re.search(r"connection|Name or service|No matching distribution", shown):
        pytest.skip("no index of Python packages can be reached from here")
    assert running.returncode == 0, shown
    assert re.search(r"^anabranch \d+\.\d+", shown, re.M)


def test_every_block_of_the_readme_is_run_by_a_test() -> None:
    """Here, but for the two commands and for Spark's, which tests/spark runs."""
    run_here = [
        the(".venv/bin/anabranch standalone"),
        the(".venv/bin/anabranch produce greetings"),
        the(".venv/bin/anabranch topics create --scalable"),
        the("import anabranch", language="python"),
        the("import pulsar", language="python"),
        the("python3 -m venv"),
    ]
    run_elsewhere = [the(TWO_COMMANDS), the("from pyspark.sql", language="python")]
    assert sorted(run_here + run_elsewhere) == sorted(text for _, text in blocks(README))


def test_no_page_installs_from_an_index_that_does_not_have_the_package() -> None:
    """`pip install anabranch[…]` is right only where the package is already, in what its own errors say."""
    assert [page.name for page in DOCS if re.search(r"pip install '?anabranch", page.read_text())] == []
