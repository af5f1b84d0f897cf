"""Figures for people and tools: Prometheus metrics, statistics in Pulsar's shapes."""
