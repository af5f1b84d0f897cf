"""docs/spark.md does what it says: its blocks run in order, and its table has every option."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from anabranch.spark.options.sink import NAMES as SINK_NAMES
from anabranch.spark.options.source import NAMES
from harness.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "spark.md"
SINK_PAGE = DOCS / "spark-sink.md"
_BLOCK = re.compile(r"^```(python|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_runs_and_prints_what_it_says(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    program = ModuleType("docs_spark")
    monkeypatch.setitem(sys.modules, program.__name__, program)
    printed = ""
    for found in _BLOCK.finditer(text):
        where = f"{PAGE.name}:{text.count(chr(10), 0, found.start()) + 1}"
        if found[1] == "output":
            assert _plain(printed) == _plain(found[2]), where
            printed = ""
            continue
        assert not printed, f"the block before {where} prints, and the page does not show it"
        source = (
            found[2].replace("localhost:6650", f"127.0.0.1:{broker.port}").replace("/data/", f"{tmp_path}/")
        )
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(source, where, "exec"), vars(program))
        printed = output.getvalue()
    assert not printed, "the last block prints, and the page does not show it"


def _plain(text: str) -> list[str]:
    """Without the widths of columns, and blanks at the ends of lines."""
    lines = (re.sub(r"\s*\|\s*", "|", re.sub(r"-+", "-", line)).strip() for line in text.strip().splitlines())
    return [line for line in lines if line]


@pytest.mark.parametrize(("page", "names"), [(PAGE, NAMES), (SINK_PAGE, SINK_NAMES)], ids=["source", "sink"])
def test_the_table_has_every_option_once(page: Path, names: tuple[str, ...]) -> None:
    text = page.read_text(encoding="utf-8")
    table = text.partition("## Options")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(names)


@pytest.mark.parametrize("page", [PAGE, SINK_PAGE], ids=["source", "sink"])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert (DOCS / target).exists(), target
