"""Fault runs: real broker processes under load that are killed, stopped and starved, and the promises that must still
hold.

`python -m soak` runs the long proof; `docs/faults.md` says what each part shows. Nothing here is part of the product.
"""
