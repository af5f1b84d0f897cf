"""Found by Spark, which looks for packages named `pyspark_…`: `.format("anabranch")` works without registering."""

from anabranch.spark.data_source import AnabranchSource as DefaultSource

__all__ = ["DefaultSource"]
