"""docs/to-parquet.md does what it says: its commands run, in order, and its program prints what is shown."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from anabranch import blocking
from anabranch.cli.main import build_parser, main, parsed
from anabranch.cli.pipelines.to_parquet import read
from harness.broker_process import BrokerProcess, until
from spark.test_to_parquet import Click, Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "to-parquet.md"
_BLOCK = re.compile(r"^```(sh|python|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROWS, LATER = 1195, 5


@contextmanager
def interrupted(broker: BrokerProcess, topic: str, table: Path) -> Iterator[None]:
    """More comes while the command runs; once that is in the table, somebody presses Ctrl-C."""

    def rows() -> int:
        return int(ds.dataset(table, partitioning="hive").count_rows())

    def press() -> None:
        publish(broker, topic, LATER)
        try:
            until(lambda: rows() == ROWS + LATER, within_s=200, every_s=0.2)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    yield
    thread.join()


def publish(broker: BrokerProcess, topic: str, count: int) -> None:
    with blocking.connect(broker.url) as client, client.producer(topic) as producer:
        for number in range(count):
            producer.post(b"/home", key=f"user-{number % 7}")


def test_the_page_does_what_it_says(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_SERVICE_URL", broker.url)
    broker.put("namespaces/public/shop")
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    broker.post("namespaces/public/shop/retention", kept)
    shop = Topic(broker, "visits", "public/shop")
    shop.send(Click(1, "/"))
    clicks = "topic://public/default/clicks"
    broker.put("scalable/public/default/clicks")
    publish(broker, clicks, ROWS)
    printed = ""
    for kind, text in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        text = text.replace("/data/", f"{tmp_path}/")
        if kind == "output":
            assert printed == text
        elif kind == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, PAGE.name, "exec"), {})
            printed = output.getvalue()
        else:
            for line in text.replace("\\\n", " ").splitlines():
                command(broker, clicks, tmp_path / "clicks", line)
    assert {path.name for path in tmp_path.iterdir()} >= {"clicks", "_clicks.anabranch", "shop", "slim"}
    shop.client.close()


def command(broker: BrokerProcess, topic: str, table: Path, line: str) -> None:
    program, *words = shlex.split(line, comments=True)
    if program != "anabranch":
        assert program == "pip"
    elif "--master" in words:
        # There is no such cluster here; but the command is understood.
        assert read(parsed(words)).output == "s3a://lake/clicks"
    elif "--follow" in words:
        with interrupted(broker, topic, table):
            assert main(words) == 0
    else:
        assert main(words) == 0


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)", PAGE.read_text(encoding="utf-8")):
        assert (DOCS / target).exists(), target


def test_every_option_that_the_page_names_exists() -> None:
    parser = build_parser()
    with contextlib.redirect_stdout(io.StringIO()) as told, pytest.raises(SystemExit):
        parser.parse_args(["pipeline", "to-parquet", "--help"])
    known = set(re.findall(r"--[a-z-]+", told.getvalue()))
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE.read_text(encoding="utf-8"))) <= known
