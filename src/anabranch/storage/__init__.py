"""Logs: the port that stores implement, a store in memory, one on disk, and the log of a topic over either."""
