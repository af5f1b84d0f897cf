"""Batches that stay hidden until they are decided: a topic's part in them, and the records that decide."""
