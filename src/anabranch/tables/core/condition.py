"""The rows before a cut, as a condition on a table's columns: in SQL, and for Arrow. Pure.

The SQL is what Spark and DuckDB both read; they differ in how names are quoted.
"""

from __future__ import annotations

from typing import Any

from anabranch.model.cut import MessagePosition
from anabranch.model.rows_before import RowsBefore


def sql(before: RowsBefore, quote: str = '"') -> str:
    """The condition in SQL; `quote` stands around each name."""
    segment = f"{quote}segment{quote}"
    found = [f"{segment} < {before.whole_below}"]
    if before.whole:
        found.append(f"{segment} in ({', '.join(map(str, sorted(before.whole)))})")
    found += [
        f"({segment} = {number} and {_sql_before(at, quote)})" for number, at in sorted(before.partly.items())
    ]
    return f"({' or '.join(found)})"


def _sql_before(at: MessagePosition, quote: str) -> str:
    ledger, entry, index = (f"{quote}{name}{quote}" for name in ("ledger", "entry", "index"))
    within = f" or ({entry} = {at[1]} and {index} < {at[2]})" if at[2] else ""
    return f"({ledger} < {at[0]} or ({ledger} = {at[0]} and ({entry} < {at[1]}{within})))"


def expression(before: RowsBefore) -> Any:
    """The condition as an expression of `pyarrow.compute`."""
    import pyarrow.compute as pc

    segment = pc.field("segment")
    found = segment < before.whole_below
    if before.whole:
        found = found | segment.isin(sorted(before.whole))
    for number, at in sorted(before.partly.items()):
        found = found | ((segment == number) & _before(at))
    return found


def _before(at: MessagePosition) -> Any:
    import pyarrow.compute as pc

    ledger, entry, index = (pc.field(name) for name in ("ledger", "entry", "index"))
    within = entry < at[1]
    if at[2]:
        within = within | ((entry == at[1]) & (index < at[2]))
    return (ledger < at[0]) | ((ledger == at[0]) & within)
