"""Which topics a query reads: those it names, or those of a namespace that match. Pure.

A namespace is watched, so topics join and leave while a query runs. Brokers list the scalable topics of a namespace
that have certain properties; a pattern for their names is matched here. Classic topics are read when they are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.model.names import Domain, NamespaceName, TopicName


@dataclass(frozen=True, slots=True)
class Choice:
    """Either names, or a namespace and the conditions for its topics."""

    names: tuple[str, ...] = ()
    namespace: str = ""
    pattern: str = ""  # For the whole local name; empty: any.
    filters: tuple[tuple[str, str], ...] = ()  # Properties that topics must have.

    @staticmethod
    def of(*names: str) -> Choice:
        return Choice(names=names)

    @staticmethod
    def matching(text: str) -> Choice:
        """Parses `tenant/namespace/pattern`, with or without `topic://` before it. Raises ValueError, or
        InvalidName."""
        domain, mark, rest = text.rpartition("://")
        if mark and domain != Domain.TOPIC:
            raise ValueError(f"{domain}:// topics cannot be listed by namespace: name them with topics")
        parts = rest.split("/", 2)
        if len(parts) != 3 or not parts[2]:
            raise ValueError("tenant, namespace and pattern are needed, with a / between them")
        try:
            re.compile(parts[2])
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return Choice(namespace=str(NamespaceName(parts[0], parts[1])), pattern=parts[2])

    @property
    def is_named(self) -> bool:
        return bool(self.names)

    def has(self, name: str) -> bool:
        """Whether a topic may be read, as far as its name decides."""
        if self.names:
            return name in self.names
        topic = TopicName.parse(name)
        if topic.domain is not Domain.TOPIC or str(topic.namespace) != self.namespace:
            return False
        return not self.pattern or re.fullmatch(self.pattern, topic.local) is not None

    def is_by_name(self, name: str) -> bool:
        """Whether the name alone decides that a topic is read, for as long as it exists."""
        return not self.filters and self.has(name)

    def of_those(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(filter(self.has, names))

    def __str__(self) -> str:
        if self.names:
            return ", ".join(self.names)
        which = f" that match {self.pattern!r}" if self.pattern else ""
        return f"the topics of {self.namespace}{which}"
