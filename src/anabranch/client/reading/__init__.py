"""Reading a topic's files without its broker: plans, ledgers, records."""
