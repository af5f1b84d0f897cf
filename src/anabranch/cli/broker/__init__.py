"""Commands that start brokers, or need none."""
