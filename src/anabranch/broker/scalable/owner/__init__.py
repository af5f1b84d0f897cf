"""Segments as their owner serves them, and subscriptions that are made on a segment directly."""
