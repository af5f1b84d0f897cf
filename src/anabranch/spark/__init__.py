"""Scalable topics in Spark: `spark.read` and `spark.readStream` with `.format("anabranch")`. Needs `pyspark`
4.2 or later.

Nothing here is imported by the rest. `pyspark_anabranch` is what Spark finds by itself.
"""
