"""docs/command-line.md: what it shows of records, schemas, tail and profiles runs as pasted, in a bare shell."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.bare_shell import ROOT, BareShell

pytestmark = pytest.mark.timeout(600)

PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
DEFINITION = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, '
    '{"name": "price", "type": ["null", "double"], "default": null}]}'
)


def block(heading: str, language: str = "sh") -> str:
    """The first block below that heading."""
    return PAGE.partition(f"{heading}\n")[2].partition(f"```{language}\n")[2].partition("```")[0]


@pytest.fixture
def shell(tmp_path: Path) -> BareShell:
    return BareShell(tmp_path)


def test_records_and_tail_do_what_the_page_says(shell: BareShell, tmp_path: Path) -> None:
    files = tmp_path / "tmp"  # What the shell calls /tmp.
    (files / "order.avsc").write_text(DEFINITION)
    (files / "orders.csv").write_text("id,price\n1,2.5\n2,\n")
    pq.write_table(pa.table({"id": [3, 4], "price": [None, 1.5]}), files / "orders.parquet")
    prepared = 'PATH="$PWD/.venv/bin:$PATH"; cd /tmp/; '
    broker = shell.start(f"{prepared}anabranch standalone --data-dir data")
    try:
        shell.run(f"{prepared}anabranch brokers health --wait 120")
        records = block("### Records and schemas")
        assert records.count("\n") == 4
        shell.run(prepared + records)
        lines = [line for line in block("## tail").splitlines() if "--no-follow" in line]
        shown = shell.run(prepared + "\n".join(lines))
        for value in (
            '"id":1,"price":2.5',
            '"id":2,"price":null',
            '"id":7,"price":2.5',
            '"id":4,"price":1.5',
        ):
            assert f"{{{value}}}" in shown
        # This one goes on until Ctrl-C.
        (following,) = [line for line in block("## tail").splitlines() if "then what comes" in line]
        tail = shell.start(f"{prepared}exec {following}")
        assert tail.stdout is not None
        assert tail.stdout.readline().startswith('{"id":')
        shell.end(tail, signal.SIGINT)
    finally:
        shell.end(broker)


def test_the_profiles_of_the_page_are_read(shell: BareShell, tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "anabranch"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(block("## Profiles", "toml"))
    shell_of = "unset ANABRANCH_SERVICE_URL ANABRANCH_ADMIN_URL; "
    away = shell.start(f"{shell_of}.venv/bin/anabranch tenants list --profile production 2>&1")
    shown, _ = away.communicate(timeout=300)
    assert away.returncode == 1
    assert "/etc/anabranch/" in shown
    unknown = shell.start(f"{shell_of}.venv/bin/anabranch tenants list --profile other 2>&1")
    shown, _ = unknown.communicate(timeout=300)
    assert "it has local, production" in shown
