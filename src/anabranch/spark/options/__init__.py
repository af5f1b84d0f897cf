"""The options that users may give to the source and the sink, and their values. Pure."""

from anabranch.spark.options.source import parse

__all__ = ["parse"]
