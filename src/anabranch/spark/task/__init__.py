"""The executor's half: reading slices, from files or through brokers, and writing."""
