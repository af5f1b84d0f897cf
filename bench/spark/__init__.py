"""Our Spark source and sink beside Spark's Kafka source and sink, and Parquet: `python -m bench.spark --help`."""
