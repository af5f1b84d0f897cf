"""Scalable topics in Spark: `spark.read` and `spark.readStream` with `.format("anabranch")`, and `table`, a topic's
history and tail as one DataFrame. Needs `pyspark` 4.2 or later.

No other package imports this one. Spark finds `pyspark_anabranch` automatically.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.spark.stitched import StitchedTable as StitchedTable
    from anabranch.spark.stitched import stitched as stitched_table
    from anabranch.spark.stitched import table as table

__all__ = ["StitchedTable", "stitched_table", "table"]

if not TYPE_CHECKING:  # Tasks import this package too, and need none of it.

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'anabranch.spark' has no attribute {name!r}")
        found = import_module("anabranch.spark.stitched")
        value = globals()[name] = getattr(found, "stitched" if name == "stitched_table" else name)
        return value
