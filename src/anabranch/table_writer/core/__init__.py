"""Decisions of the table writer: how far a commit reaches, when the next is due, which columns a table gets. Pure."""
