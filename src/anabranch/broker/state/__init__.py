"""A topic's state as values: cursors, hidden entries, sequence ids; how it is written and read back. Pure."""
