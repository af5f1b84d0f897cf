"""A topic as a table: its history from the table's files, its tail from the log, one answer up to one cut."""
