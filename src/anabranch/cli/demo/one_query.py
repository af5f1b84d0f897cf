"""One query over all of the demo's topic, while the newest clicks are in no file yet: files of its table, and the log.

DuckDB runs it where it is installed, else Arrow does.
"""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass
from typing import Any, Final

# How long the table's first commit may take, on a busy machine.
FIRST_COMMIT_MAX_S: Final = 60.0
LOOK_EVERY_S: Final = 0.2
_QUERY: Final = "select count(*), count(distinct value) from clicks"


def is_possible() -> bool:
    """Whether tables can be written and read here."""
    needed = ("deltalake", "numba", "obstore", "pyarrow")
    return all(importlib.util.find_spec(name) is not None for name in needed)


@dataclass(frozen=True, slots=True)
class OneAnswer:
    rows: int
    distinct: int
    of_files: int
    files: int
    seconds: float
    engine: str

    @property
    def claim(self) -> str:
        return (
            f"{self.engine} counts {self.rows:,} clicks, {self.distinct:,} different ones, in {self.seconds:.1f} s: "
            f"{self.of_files:,} from {self.files} Parquet file{'s' * (self.files != 1)}, the newest "
            f"{self.rows - self.of_files:,} from the log"
        )


def ask_once(service_url: str, topic: str) -> OneAnswer:
    """The answer, as soon as the table has anything."""
    from anabranch import blocking

    with blocking.connect(service_url) as client:
        deadline = time.monotonic() + FIRST_COMMIT_MAX_S
        while not client.table(topic).files:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the table had no version within {FIRST_COMMIT_MAX_S:.0f} s")
            time.sleep(LOOK_EVERY_S)
        began = time.monotonic()
        rows = client.table(topic)
        engine, (count, distinct) = _counted(rows)
        seconds = time.monotonic() - began
    of_files = count - len(rows.tail)
    return OneAnswer(count, distinct, of_files, len(rows.files), seconds, engine)


def _counted(rows: Any) -> tuple[str, tuple[int, int]]:
    if importlib.util.find_spec("duckdb") is None:
        values = rows.to_arrow(columns=["value"]).column("value")
        return "Arrow", (len(values), len(values.unique()))
    import duckdb

    with duckdb.connect() as connection:
        rows.duckdb(connection, "clicks")
        return "DuckDB", connection.execute(_QUERY).fetchone()
