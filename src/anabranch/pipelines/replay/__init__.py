"""Replays recorded or synthetic load through the code that decides about splits and merges, and sums up the outcome.
Pure."""
