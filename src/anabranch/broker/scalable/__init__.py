"""Scalable topics on a broker: what it owns of them, and what it tells their clients."""
