"""Brokers on simulated machines: how they start and die, which topics each owns, and faults built in on purpose."""
