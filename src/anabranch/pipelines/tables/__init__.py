"""Jobs that write topics to tables of Parquet, Delta or Iceberg: their files, their log, and the formats."""
