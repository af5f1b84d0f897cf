"""Decisions of a producer. Pure."""
