"""How users write the names of settings: `maxMessageSize` for `max_message_size`. Pure."""

from __future__ import annotations

from typing import Final

# Words that Pulsar writes in capitals, except at the start of a name.
_CAPITALS: Final = {"ttl": "TTL", "cpu": "CPU"}
_ABBREVIATIONS: Final = {"_in_mb": "InMB", "_in_gb": "InGB"}


def spelled(name: str) -> str:
    for tail, replacement in _ABBREVIATIONS.items():
        if name.endswith(tail):
            return spelled(name.removesuffix(tail)) + replacement
    first, *rest = name.split("_")
    return first + "".join(_CAPITALS.get(word, word.capitalize()) for word in rest)
