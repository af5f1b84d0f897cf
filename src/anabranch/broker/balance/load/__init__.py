"""Load of brokers and bundles: measured, reported to the leader, followed by all brokers; the rounds that use it."""
