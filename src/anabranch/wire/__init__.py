"""Pulsar's binary protocol: frames, commands, batches and the state of one connection, without a socket."""
