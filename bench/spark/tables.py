"""`python -m bench.spark.tables`: a topic's history through `anabranch.spark.table`, beside Spark's own scan of the
same files and beside our direct reads of the log.

Rows a second of wall time, and a CPU second of Spark's processes: on a busy machine only the latter says anything. The
kinds are measured in turn, so that all of them meet the same trouble.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak.broker import BrokerProcess, command

import anabranch.spark
from anabranch import blocking
from bench import usage
from bench.spark import data
from bench.spark.session import session

COLUMNS = ("key", "value")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.spark.tables", description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000, help="of 100 bytes; a third of it of 1 KB")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tables-") as name:
        root = Path(name)
        settings = {
            "tablesUrl": str(root / "tables"),
            "tablesDefaultMode": "raw",
            "tablesWriterEnabled": False,
        }
        broker = BrokerProcess(root / "data", settings)
        broker.start()
        spark = session((), root)
        try:
            for size, rows in ((100, args.rows), (1000, args.rows // 3)):
                measure(spark, broker, size, rows, args.rounds)
        finally:
            spark.stop()
            broker.terminate()


def measure(spark: Any, broker: BrokerProcess, size: int, rows: int, rounds: int) -> None:
    topic = f"topic://public/default/rows-{size}"
    admin = f"http://127.0.0.1:{broker.http_port}"
    data.create_topic(admin, f"rows-{size}", 4)
    send(broker, topic, size, rows)
    writing = [command(), "tables", "run", "--admin-url", admin, "--service-url", broker.url, "--once"]
    subprocess.run(writing, check=True, capture_output=True)
    with blocking.connect(broker.url) as client:
        files = client.table(topic, part="history").files

    def plain() -> Any:
        return spark.read.parquet(*(f"file://{path}" for path in files)).select(*COLUMNS)

    def table() -> Any:
        return anabranch.spark.table(spark, topic, serviceUrl=broker.url).select(*COLUMNS)

    def direct() -> Any:
        return (
            spark.read.format("anabranch")
            .options(serviceUrl=broker.url, topic=topic, columns=",".join(COLUMNS), readMode="direct")
            .load()
        )

    kinds: dict[str, Callable[[], Any]] = {"plain Parquet": plain, "table": table, "direct reads": direct}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name, made in kinds.items():
            assert number or made().count() == rows, name
            spent = timed(made, broker.pid)
            if number:
                found[name].append(spent)
    first: dict[str, float] = {}
    for name, times in found.items():
        walls, cpus = zip(*times, strict=True)
        wall, cpu = statistics.median(walls), statistics.median(cpus)
        first.setdefault("wall", wall)
        first.setdefault("cpu", cpu)
        print(
            f"{size:5} B  {name:14} {rows / wall / 1e6:6.2f} M rows/s  {rows / cpu / 1e6:6.2f} M rows/CPU s  "
            f"({first['wall'] / wall:.2f}x and {first['cpu'] / cpu:.2f}x of plain Parquet)",
            flush=True,
        )


def send(broker: BrokerProcess, topic: str, size: int, rows: int) -> None:
    import numpy as np
    import pyarrow as pa

    chance = np.random.default_rng(7)
    with blocking.connect(broker.url) as client, client.producer(topic) as producer:
        for start in range(0, rows, 50_000):
            count = min(50_000, rows - start)
            digits = chance.integers(48, 58, count * size, np.uint8).tobytes()
            offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * size)
            value = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(digits)])
            key = pa.array([f"key-{number % 10_000}" for number in range(start, start + count)])
            producer.send_batch(pa.table({"key": key, "value": value}), key="key", value="value")


def timed(made: Callable[[], Any], broker_pid: int) -> tuple[float, float]:
    """Seconds of wall time, and CPU seconds of this process and Spark's, to make a frame and read all of it."""
    before, began = _cpu(broker_pid), time.perf_counter()
    made().write.format("noop").mode("overwrite").save()
    wall = time.perf_counter() - began
    return wall, _cpu(broker_pid) - before


def _cpu(broker_pid: int) -> float:
    brokers = set(usage.family(broker_pid))
    total = 0.0
    for pid in usage.family(os.getpid()):
        if pid in brokers:
            continue
        try:
            # With the time of children that have ended: Spark's idle workers do.
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(ticks) for ticks in fields[11:15]) / usage.HZ
    return total


if __name__ == "__main__":
    main()
