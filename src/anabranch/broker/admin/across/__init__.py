"""Requests about topics at several brokers: each part is asked of its owner, and the answers are put together."""
