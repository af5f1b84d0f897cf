"""Batches that stay hidden until they are decided, on the writer's side."""
