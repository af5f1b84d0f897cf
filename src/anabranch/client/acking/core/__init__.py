"""Decisions about acknowledgements. Pure."""
