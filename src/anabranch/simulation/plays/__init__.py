"""Loads that some runs have beside their main load: each play is one kind of trouble that a seed may draw."""
