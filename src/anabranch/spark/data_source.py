"""The data source `anabranch`: passes Spark's calls on.

Spark looks for sources in one process and analyses a query in another, and imports this module in both: other modules
are imported where they are used. Options are checked when Spark asks for the schema, that is when the query is
analysed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from anabranch.spark.options.source import Options
    from anabranch.spark.sink import BatchWriter, StreamWriter
    from anabranch.spark.source import BatchReader, StreamReader
    from anabranch.spark.values.analysed_schema import Declared


class AnabranchSource(DataSource):
    """`.format("anabranch")` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "anabranch"

    _declared: Declared | None = None

    def schema(self) -> StructType | str:
        from anabranch.spark.options.source import COLUMNS, SCHEMA, parse

        options = parse(self._given)
        if not options.decode:
            wanted = options.columns
            return SCHEMA if wanted is None else ", ".join(f"{name} {COLUMNS[name]}" for name in wanted)
        from pyspark.sql.pandas.types import from_arrow_schema

        declared = self._found_schema(options)
        assert declared is not None
        return from_arrow_schema(declared.columns())

    def _found_schema(self, options: Options) -> Declared | None:
        """Finds the topic's schema once. Spark pickles the source after the analysis, so readers get the schema of that
        time."""
        if options.decode and self._declared is None:
            from anabranch.spark.values.analysed_schema import declared

            self._declared = declared(options)
        return self._declared

    @property
    def _given(self) -> Mapping[str, str]:
        return dict(self.options)

    def reader(self, schema: Any) -> BatchReader:
        from anabranch.spark.options.source import parse
        from anabranch.spark.source import BatchReader

        options = parse(self._given, "batch")
        return BatchReader(options, self._declared_as(schema, options))

    def streamReader(self, schema: Any) -> StreamReader:
        from anabranch.spark.options.source import parse
        from anabranch.spark.source import StreamReader

        options = parse(self._given, "stream")
        return StreamReader(options, self._declared_as(schema, options))

    def _declared_as(self, schema: Any, options: Options) -> Declared | None:
        """The topic's schema. Raises BadOption if users have given their own columns with `.schema(…)`: Spark does not
        call `schema()` then, so they are first noticed here."""
        from anabranch.spark.options.source import COLUMNS, BadOption

        declared = self._found_schema(options)
        if declared is not None:
            from pyspark.sql.pandas.types import from_arrow_schema

            own = [(one.name, one.dataType.simpleString()) for one in from_arrow_schema(declared.columns())]
        else:
            names = tuple(COLUMNS) if options.columns is None else options.columns
            # Spark shows `timestamp_ltz` as `timestamp`.
            own = [(name, COLUMNS[name].replace(" ", "").replace("_ltz", "")) for name in names]
        if [(one.name, one.dataType.simpleString()) for one in schema.fields] != own:
            raise BadOption(
                f".schema(…) is {schema.simpleString()}, and the source's columns are "
                f"{', '.join(f'{name} {kind}' for name, kind in own)}: leave .schema(…) out. The option columns "
                "chooses some, decode=true makes columns of the topic's schema, and select and cast do the rest"
            )
        return declared

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        from anabranch.spark.sink import BatchWriter, plan_of

        return BatchWriter(plan_of(self._given, schema, overwrite, "batch"))

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        from anabranch.spark.sink import StreamWriter, plan_of

        return StreamWriter(plan_of(self._given, schema, overwrite, "stream"))
