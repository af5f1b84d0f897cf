"""Decisions about scalable topics. Pure: states and events in, states and effects out."""
