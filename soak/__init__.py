"""Proof by faults: real broker processes under load, killed, stopped, starved and lied to, and what must still hold.

`python -m soak` runs the long proof; `docs/faults.md` says what each part shows. Nothing here is part of the product.
"""
