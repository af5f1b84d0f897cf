"""A hostile client, generated from the protocol's descriptors, against a real broker that serves bystanders too.

`python -m hostile` runs it (`make fuzz`); `test_hostile.py` is the part of it in `make test`.
"""
