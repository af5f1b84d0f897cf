"""Commands that run jobs on Spark."""
