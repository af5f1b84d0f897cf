"""Delta and Iceberg tables, by those formats' own streaming sinks, which write each batch once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from anabranch.errors import AnabranchError
from anabranch.pipelines.tables.to_parquet import TablePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CATALOG: Final = "anabranch"
_CLASSES: Final = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.SparkCatalog",
}


class NoFormat(AnabranchError):
    """The session lacks the jars of a table format; the message says which package to give."""


def settings_for(kind: str, output: str) -> Mapping[str, str]:
    """The settings that a session must be started with."""
    if kind == "delta":
        return {
            "spark.sql.extensions": _CLASSES["delta"],
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    if kind == "iceberg":
        return {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            f"spark.sql.catalog.{CATALOG}": _CLASSES["iceberg"],
            f"spark.sql.catalog.{CATALOG}.type": "hadoop",
            f"spark.sql.catalog.{CATALOG}.warehouse": output,
        }
    return {}


# The jars that exist for releases of Spark. Jars for another release fail: Delta's for 4.2 call a method that 4.3
# lacks, and the classes of 4.3 are incompatible with Iceberg's for 4.1.
_PACKAGES: Final = {("delta", "4.2"): "io.delta:delta-spark_4.2_2.13:4.4.0"}
_NAMES: Final = {"delta": "io.delta:delta-spark", "iceberg": "org.apache.iceberg:iceberg-spark-runtime"}


def package_for(kind: str, spark_version: str) -> str:
    """The end of a sentence about the format's jars: which package to give, or that there is none."""
    release = ".".join(spark_version.split(".")[:2])
    if (kind, release) in _PACKAGES:
        return f"give --packages {_PACKAGES[kind, release]}, which is made for Spark {release}"
    separator = "_" if kind == "delta" else "-"
    name = f"{_NAMES[kind]}{separator}{release}_2.13"
    others = ", ".join(f"Spark {one} has {package}" for (of, one), package in _PACKAGES.items() if of == kind)
    has = f"; {others} (pip install 'pyspark=={_release_of(kind)}.*')" if others else ""
    return (
        f"none was made for Spark {release} when this was written{has}. If there is one by now, give --packages "
        f"{name}:VERSION"
    )


def _release_of(kind: str) -> str:
    """The latest release of Spark that a format has jars for."""
    return max(release for of, release in _PACKAGES if of == kind)


def check(spark: SparkSession, kind: str) -> None:
    """Raises NoFormat if the session cannot write such tables."""
    if kind not in _CLASSES:
        return
    jvm: Any = spark.sparkContext
    try:
        jvm._jvm.org.apache.spark.util.Utils.classForName(_CLASSES[kind], True, False)
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        raise NoFormat(
            f"{kind.capitalize()} is not on this Spark session: {package_for(kind, spark.version)}. Or leave out "
            "--format for plain Parquet"
        ) from None


_MISFITS: Final = (
    "NoSuchMethodError",
    "NoClassDefFoundError",
    "AbstractMethodError",
    "IncompatibleClassChangeError",
)


def why_not(spark: SparkSession, kind: str, error: BaseException) -> NoFormat | None:
    """NoFormat if the error comes from jars for another release of Spark, else None."""
    if kind not in _CLASSES or not any(name in str(error) for name in _MISFITS):
        return None
    return NoFormat(
        f"the jars of {kind.capitalize()} are made for another release of Spark than {spark.version}: "
        f"{package_for(kind, spark.version)}"
    )


class FormatTable:
    """A Delta or Iceberg table, at a path (Delta) or in a catalog of folders (Iceberg)."""

    def __init__(self, spark: SparkSession, kind: str, path: str, name: str, plan: TablePlan) -> None:
        self._spark = spark
        self._kind = kind
        self._path = path
        self._name = f"{CATALOG}.{name}"
        self._plan = plan

    def writer(self, frame: DataFrame) -> Any:
        """The stream's writer, which still needs a checkpoint and a trigger."""
        if self._kind == "delta":
            made = frame.writeStream.format("delta").option("path", self._path)
            # Adds the columns that were added to the topic's schema.
            return made.option("mergeSchema", "true").partitionBy(self._plan.date)
        if not self._spark.catalog.tableExists(self._name):
            from pyspark.sql import functions as f

            empty = self._spark.createDataFrame([], frame.schema)
            writing = empty.writeTo(self._name).using("iceberg").partitionedBy(f.col(self._plan.date))
            writing.tableProperty("write.spark.accept-any-schema", "true").create()
        made = frame.writeStream.format("iceberg").option("path", self._name)
        return made.option("fanout-enabled", "true").option("mergeSchema", "true")

    def compact(self, today: str) -> None:
        """Compacts the files of past days."""
        day = self._plan.date
        if self._kind == "delta":
            self._spark.sql(f"OPTIMIZE delta.`{self._path}` WHERE `{day}` < '{today}'").collect()
            return
        self._spark.sql(
            f"CALL {CATALOG}.system.rewrite_data_files(table => '{self._name}', where => '{day} < \"{today}\"')"
        ).collect()
