"""The names in a request's path, each decoded once: the right is checked for exactly what the handler will act on.

Paths are routed as they were sent, percent-encoded, so that `a%2Fb` is one word. Topic and subscription names come from
Java's URLEncoder, which writes a space as `+`; names of scalable topics do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from urllib.parse import unquote, unquote_plus

from anabranch.broker.admin.http.errors import RestError
from anabranch.model.names import Domain, NamespaceName, TopicName


class NoSuchDomain(RestError, ValueError):
    pass


class PathNames:
    """Raises InvalidName or RestError for an invalid name, KeyError for a name that the route's path does not have."""

    def __init__(self, words: Mapping[str, str], domain: Domain | None) -> None:
        # As they were sent.
        self.words = words
        self._domain = domain

    def __contains__(self, name: str) -> bool:
        return name in self.words

    @cached_property
    def tenant(self) -> str:
        return unquote(self.words["tenant"])

    @cached_property
    def namespace(self) -> NamespaceName:
        return NamespaceName(self.tenant, unquote(self.words["namespace"]))

    @cached_property
    def domain(self) -> Domain:
        """The route's domain, or the one in the path."""
        if self._domain is not None:
            return self._domain
        try:
            return Domain(self.words["domain"])
        except ValueError:
            known = ", ".join(one.value for one in Domain)
            raise NoSuchDomain(400, f"Invalid parameter: domain: expected one of {known}") from None

    @cached_property
    def topic(self) -> TopicName:
        domain, namespace, text = self.domain, self.namespace, self.words["topic"]
        return TopicName(domain, namespace, decoded_once(text) if domain is Domain.TOPIC else decoded(text))

    @cached_property
    def subscription(self) -> str:
        """The subscription; empty if the path names none."""
        text = self.words.get("subscription", "")
        if self._domain is Domain.TOPIC:
            return decoded_once(text)
        # Decoded twice, as in Pulsar: its admin client encodes subscription names twice, and topics once.
        return decoded(unquote(text))


def decoded(text: str) -> str:
    try:
        return unquote_plus(text, errors="strict")
    except UnicodeDecodeError:
        raise RestError(400, f"{text} is not percent-encoded UTF-8") from None


def decoded_once(text: str) -> str:
    """A name sent by Pulsar's clients of scalable topics, in which a `+` stays a `+`."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise RestError(400, f"{text} is not percent-encoded UTF-8") from None
