"""Decisions of the transport: what refusals mean, how a watched set of topics changes. Pure."""
