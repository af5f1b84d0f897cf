"""The process that keeps topics as tables: it reads what is confirmed and revealed, and commits it with its cut."""
