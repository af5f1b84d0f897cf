"""Simulates whole clusters in one process on one seed, with a virtual clock and many faults, and checks the outcome."""
