"""Sends a topic's entries to the consumers of a subscription, one module per way of sharing them."""
