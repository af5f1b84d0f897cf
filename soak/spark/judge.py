"""Whether a table, or a topic, holds the input: every message once, those of a key in order. Pure.

The input are numbers from 0 on, each with the key that it was published with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

# Fewer than there are segments at times: segments without keys stay empty, and are deleted empty.
KEYS = 5


def key_of(number: int) -> str:
    return f"key-{number % KEYS}"


def faults(rows: Iterable[tuple[str, int]], keys: Sequence[str]) -> list[str]:
    """What is wrong with rows (key, number), in the order of a reader; `keys` has the key of each number."""
    found: list[str] = []
    seen: Counter[int] = Counter()
    last: dict[str, int] = {}
    for key, number in rows:
        seen[number] += 1
        if not 0 <= number < len(keys) or key != keys[number]:
            found.append(f"{number} with key {key} was never published")
        elif number <= last.get(key, -1) and seen[number] == 1:
            found.append(f"{key}: {number} stands behind {last[key]}")
        last[key] = max(number, last.get(key, -1))
    missing = [number for number in range(len(keys)) if number not in seen]
    twice = [number for number, count in seen.items() if count > 1]
    if missing:
        found.append(f"{len(missing)} are missing, such as {missing[:5]}")
    if twice:
        found.append(f"{len(twice)} are there more than once, such as {sorted(twice)[:5]}")
    return found
