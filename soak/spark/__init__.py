"""A streaming query whose driver, executors and broker are killed, and what is left in the end."""
