"""Scalable topics on a broker: the segments that it owns, and what it sends to their clients."""
