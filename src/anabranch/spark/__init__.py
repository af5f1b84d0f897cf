"""Scalable topics in Spark: `spark.read` and `spark.readStream` with `.format("anabranch")`. Needs `pyspark`
4.2 or later.

No other package imports this one. Spark finds `pyspark_anabranch` automatically.
"""
