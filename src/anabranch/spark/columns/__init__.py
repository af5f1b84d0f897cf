"""Columns: those of rows of messages, the rows that a query wants, and what the sink makes of a DataFrame. Pure."""
