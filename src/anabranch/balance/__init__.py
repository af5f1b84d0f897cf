"""The load balancer of PIP-192: which broker owns a bundle, and when that changes."""
