"""Decisions about the processes of a cluster: what is started, drained and killed, and when. Pure."""
