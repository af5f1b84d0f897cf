"""Whole clusters in one process on one seed, with a virtual clock, in a hostile world, and what came of it checked."""
