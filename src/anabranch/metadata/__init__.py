"""The records that brokers share: a port, its embedded adapters, and their errors."""
