"""Keyed compaction: the latest message of each key, kept beside the log. See docs/compaction.md."""
