"""The README's Spark program, and the examples, run as pasted from a shell that knows nothing of this checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.bare_shell import ROOT, BareShell, blocks
from harness.broker_process import BrokerProcess

# Each starts a Spark of its own: half a minute where nothing else runs.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[BareShell]:
    shell = BareShell(tmp_path)
    broker = BrokerProcess(tmp_path)
    broker.port, broker.http_port = shell.port, shell.http_port
    with broker:
        # It may have had to take others.
        shell.port, shell.http_port = broker.port, broker.http_port
        yield shell


def test_the_readmes_program_writes_the_topics_rows_and_shows_them(shell: BareShell) -> None:
    (program,) = [text for _, text in blocks(ROOT / "README.md") if "SparkSession" in text]
    (commands,) = [text for _, text in blocks(ROOT / "README.md") if "produce topic://" in text]
    # What the block before it sends is what the program reads.
    url = f"--service-url pulsar://127.0.0.1:{shell.port}"
    sent = next(line for line in commands.splitlines() if "produce topic://" in line)
    shell.run(sent.replace(" produce ", f" produce {url} "))
    shown = shell.run(program, "python")
    for path in ("/home", "/cart", "/paid"):
        assert f"|visitor-1|{path}|" in shown.replace(" ", ""), shown


def test_an_example_runs_without_its_environment_on_the_path(shell: BareShell) -> None:
    shown = shell.run(f".venv/bin/python examples/clickstream.py pulsar://127.0.0.1:{shell.port}")
    assert "DATA_SOURCE_NOT_FOUND" not in shown


@pytest.mark.parametrize("name", ["clickstream.py", "wheel_to_spark.py", "fraud.py", "backfill.py"])
def test_each_example_names_the_python_that_it_runs_with(name: str) -> None:
    text = " ".join((ROOT / "examples" / name).read_text().split())
    assert 'os.environ.setdefault( "PYSPARK_PYTHON", sys.executable )' in text
