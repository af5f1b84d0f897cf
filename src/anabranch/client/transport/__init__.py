"""Connections to brokers, and the standing requests that are made again when one is lost."""
