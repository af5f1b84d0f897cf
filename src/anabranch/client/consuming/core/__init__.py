"""Decisions of a consumer. Pure."""
