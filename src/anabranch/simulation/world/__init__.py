"""The parts of every run: clients and operators, faults, a history of what clients saw, and the laws that judge it."""
