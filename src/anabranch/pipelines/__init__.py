"""Jobs that ship with Anabranch and run on Spark: backtests, load history and tables, and the session they run in."""
