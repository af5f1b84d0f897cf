"""Simulates the controller's decisions alone: leaders perform them and die between any two effects, without brokers."""
