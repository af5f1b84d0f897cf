"""Which module of `src/anabranch` imports which, and where that goes in circles.

Everything that a reader meets counts: imports at the top, those for type checkers only, and those within functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "anabranch"


def modules() -> list[Path]:
    return sorted(p for p in SOURCE.rglob("*.py") if "_pb2" not in p.name)


def name_of(path: Path) -> str:
    return ".".join(("anabranch", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def module_imports() -> dict[str, set[str]]:
    """The modules that each module imports."""
    paths = {name_of(path): path for path in modules()}
    return {name: set(_imports(path)) & paths.keys() - {name} for name, path in paths.items()}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = SOURCE.parent.joinpath(*node.module.split("."), alias.name)
                is_module = inner.with_suffix(".py").exists() or (inner / "__init__.py").exists()
                yield f"{node.module}.{alias.name}" if is_module else node.module


def street_of(module: str) -> str:
    """The folder that a module lies in. What lies directly in a layer, such as `broker.errors`, stands for itself:
    errors are below all folders of their layer, and a composition root or a face is above them."""
    parts = module.split(".")[1:]
    is_package = (SOURCE.joinpath(*parts) / "__init__.py").exists()
    return "/".join(parts if is_package or len(parts) <= 2 else parts[:-1])


def street_imports(imports: Mapping[str, Set[str]]) -> dict[str, set[str]]:
    """The streets that each street imports from."""
    found: dict[str, set[str]] = {}
    for module, targets in imports.items():
        street = street_of(module)
        found.setdefault(street, set()).update({street_of(target) for target in targets} - {street})
    return found


def cycles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """The strongly connected parts of a graph that have more than one node, largest first (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            part, stack[at:] = sorted(stack[at:]), []
            if len(part) > 1:
                found.append(part)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)
