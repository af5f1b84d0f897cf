"""Names that exist, mixed among the made-up ones. Loaded by schemathesis."""

from __future__ import annotations

import importlib
from typing import Any

# By name: it is not among the packages that everything else is checked with.
schemathesis: Any = importlib.import_module("schemathesis")

_KNOWN: dict[str, list[Any]] = {
    "tenant": ["fuzz", "public"],
    "namespace": ["ns", "default"],
    "topic": ["t", "t-partition-0", "p"],
    "subscription": ["s"],
    "cluster": ["standalone"],
    "bundle": ["0x00000000_0x40000000"],
    "domain": ["persistent"],
    "version": [0],
    "count": [1],
    "name": ["allowAutoTopicCreation"],
}


# What the other requests need must stay; made-up names may be deleted as much as they like.
_KEPT = (
    "/tenants/{tenant}",
    "/namespaces/{tenant}/{namespace}",
    "/{topic}",
    "/partitions",
    "/{subscription}",
)


def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    operation = context.operation
    if not path_parameters or (operation.method.upper() == "DELETE" and operation.path.endswith(_KEPT)):
        return path_parameters
    changed = dict(path_parameters)
    for name, known in _KNOWN.items():
        # By what was made up, so that the same seed makes the same requests again.
        if name in changed and (choice := sum(str(changed[name]).encode("utf-8", "replace")) % 8) < 6:
            changed[name] = known[choice % len(known)]
    return changed


schemathesis.hook(map_path_parameters)
