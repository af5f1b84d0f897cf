"""docs/tables.md does what it says: its blocks run in order beside a table writer."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.broker_process import BrokerProcess
from tables.keeping import tables_kept

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
_BLOCK = re.compile(r"^```(sh|python|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("spark")
def test_the_page_runs_and_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    program = ModuleType("docs_tables")
    monkeypatch.setitem(sys.modules, program.__name__, program)
    printed = ""
    settings = {
        "tablesUrl": tmp_path / "tables",
        "tablesWriterEnabled": False,
        "tablesCommitSeconds": 0.2,
    }
    with BrokerProcess(tmp_path, settings) as broker, tables_kept(broker, tmp_path / "tables", monkeypatch):
        for found in _BLOCK.finditer(text):
            where = f"{PAGE.name}:{text.count(chr(10), 0, found.start()) + 1}"
            if found[1] == "output":
                assert printed.split() == found[2].split(), where
                printed = ""
                continue
            assert not printed, f"the block before {where} prints, and the page does not show it"
            if found[1] == "sh":
                _command(found[2], broker)
                continue
            source = found[2].replace("localhost:6650", f"127.0.0.1:{broker.port}")
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(source, where, "exec"), vars(program))
            printed = output.getvalue()
    assert not printed, "the last block prints, and the page does not show it"


def _command(line: str, broker: BrokerProcess) -> None:
    program, *words = shlex.split(line)
    assert program == "anabranch"
    admin = ["--admin-url", f"http://127.0.0.1:{broker.http_port}"]
    subprocess.run([sys.executable, "-m", "anabranch.cli", *words, *admin], check=True, capture_output=True)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#:]+)[^)]*\)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / target).exists(), target
