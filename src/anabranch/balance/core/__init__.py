"""Decisions of the load balancer. Pure: loads and states in, verdicts with their reasons out."""
