"""What is said of a table format's jars: those that there are for a release of Spark, or that there are none."""

from __future__ import annotations

from anabranch.pipelines.tables.formats import package_for


def test_a_release_that_the_format_has_jars_for_is_told_which() -> None:
    said = package_for("delta", "4.2.1")
    assert said == "give --packages io.delta:delta-spark_4.2_2.13:4.4.0, which is made for Spark 4.2"


def test_a_release_without_jars_is_told_so_and_which_release_has_them() -> None:
    said = package_for("delta", "4.3.0")
    assert said.startswith(
        "none was made for Spark 4.3 when this was written; Spark 4.2 has io.delta:delta-spark_4.2"
    )
    assert "pip install 'pyspark==4.2.*'" in said
    assert said.endswith("--packages io.delta:delta-spark_4.3_2.13:VERSION")


def test_a_format_without_jars_for_any_release_is_told_so() -> None:
    said = package_for("iceberg", "4.3.0")
    assert said.startswith("none was made for Spark 4.3 when this was written. If")
    assert said.endswith("--packages org.apache.iceberg:iceberg-spark-runtime-4.3_2.13:VERSION")
