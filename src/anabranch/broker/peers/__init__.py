"""Brokers talk to each other: who may, over which link, with which requests, and who performs them."""
