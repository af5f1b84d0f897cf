"""Policies of namespaces and topics as values, and the decisions that follow from them."""
