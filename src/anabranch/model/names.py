"""Names of topics and namespaces: parsing, partition suffixes, spelling in metadata paths. Pure.

    persistent://tenant/namespace/local        a classic topic; `t` and `tenant/ns/t` are short for it
    non-persistent://tenant/namespace/local    a classic topic without a log
    topic://tenant/namespace/local             a scalable topic; its local name may hold slashes
    segment://tenant/namespace/parent/0000-7fff-1    one segment of a scalable topic

The rules are Pulsar's, with three refusals of our own: `.` and `..` as a tenant or namespace (they are folders
in every file system), white space around a name (clients strip it, so the topic could never be addressed
again), and names too long to be a metadata path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final
from urllib.parse import quote_plus, unquote_plus

from anabranch.errors import AnabranchError

PARTITION_SUFFIX: Final = "-partition-"
PARTITION_INDEX_MAX: Final = 2**31 - 1
# A tenant or namespace is a folder name somewhere, and file systems stop at 255 bytes.
ENTITY_CHARS_MAX: Final = 200
# Percent-encoding triples a byte at worst, and a metadata path may have 4096.
LOCAL_BYTES_MAX: Final = 1024

_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)
_SEGMENT = re.compile(r"([0-9a-fA-F]{1,4})-([0-9a-fA-F]{1,4})-([0-9]{1,19})")


class InvalidName(AnabranchError):
    """The text names no topic or namespace; the message says which rule it breaks."""

    code = 17  # InvalidTopicName


class Domain(StrEnum):
    PERSISTENT = "persistent"
    NON_PERSISTENT = "non-persistent"
    TOPIC = "topic"
    SEGMENT = "segment"


_DOMAINS: Final = {domain.value: domain for domain in Domain}


def check_entity(kind: str, name: str) -> str:
    """The name itself, once it is known to be a legal tenant, namespace or cluster name."""
    if not _ENTITY.fullmatch(name) or name in (".", ".."):
        raise InvalidName(f"invalid {kind} name {name!r}: letters, digits and any of - = : . _ are allowed")
    if len(name) > ENTITY_CHARS_MAX:
        raise InvalidName(f"{kind} name of {len(name)} characters, limit {ENTITY_CHARS_MAX}")
    return name


def check_given(kind: str, name: str) -> None:
    """Raises InvalidName for the name of a subscription, producer or consumer that is longer than a topic's may be:
    such names are stored, and repeated in all statistics."""
    if len(name) > LOCAL_BYTES_MAX or len(name.encode(errors="replace")) > LOCAL_BYTES_MAX:
        raise InvalidName(f"{kind} name of {len(name)} characters, limit {LOCAL_BYTES_MAX} bytes")


def encode_local(local: str) -> str:
    """One path segment for the local name, spelled as Java's URLEncoder does; `decode_local` undoes it."""
    encoded = quote_plus(local, safe="*").replace("~", "%7E")
    # Stores refuse relative segments; an encoded dot decodes to the same name.
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def decode_local(encoded: str) -> str:
    return unquote_plus(encoded, errors="strict")


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/namespace`."""

    tenant: str
    namespace: str

    def __post_init__(self) -> None:
        check_entity("tenant", self.tenant)
        check_entity("namespace", self.namespace)

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        parts = text.split("/")
        if len(parts) == 3:
            raise InvalidName(
                f"{text!r} has a cluster in it, a form no longer supported; use tenant/namespace"
            )
        if len(parts) != 2:
            raise InvalidName(f"{text!r} is not of the form tenant/namespace")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    def topic(self, local: str, domain: Domain = Domain.PERSISTENT) -> TopicName:
        return TopicName(domain, self, local)


PUBLIC_DEFAULT: Final = NamespaceName("public", "default")
SYSTEM_NAMESPACE: Final = NamespaceName("pulsar", "system")


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A full topic name. Equality, order and hash are those of its text, which `str()` returns at no cost."""

    domain: Domain = field(compare=False)
    namespace: NamespaceName = field(compare=False)
    local: str = field(compare=False)
    segment: str = field(default="", compare=False)  # "0000-7fff-1", only for `segment://`.
    text: str = field(init=False, repr=False)
    partition_index: int = field(
        init=False, compare=False, repr=False
    )  # -1 when the name is not a partition's.

    def __post_init__(self) -> None:
        _check_local(self)
        text = f"{self.domain.value}://{self.namespace}/{self.local}"
        object.__setattr__(self, "text", f"{text}/{self.segment}" if self.segment else text)
        object.__setattr__(self, "partition_index", _partition_index(self.local) if self.is_classic else -1)

    @staticmethod
    def parse(text: str) -> TopicName:
        """The topic that a user or peer calls `text`; InvalidName with the broken rule otherwise."""
        return _parse(text)

    @property
    def tenant(self) -> str:
        return self.namespace.tenant

    @property
    def is_persistent(self) -> bool:
        return self.domain is not Domain.NON_PERSISTENT

    @property
    def is_classic(self) -> bool:
        """`persistent://` or `non-persistent://`: known to every client of Pulsar's protocol."""
        return self.domain in (Domain.PERSISTENT, Domain.NON_PERSISTENT)

    @property
    def is_system(self) -> bool:
        """Whether it is one of the brokers' own topics, by Pulsar's naming: lists leave it out unless asked for it."""
        return self.local.startswith("__")

    @property
    def is_partition(self) -> bool:
        return self.partition_index >= 0

    @property
    def base(self) -> TopicName:
        """The partitioned topic that this partition belongs to; the name itself if it is no partition's."""
        if not self.is_partition:
            return self
        return TopicName(self.domain, self.namespace, self.local.rpartition(PARTITION_SUFFIX)[0])

    def partition(self, index: int) -> TopicName:
        """Partition `index` of the topic; for a partition, its sibling."""
        if not 0 <= index <= PARTITION_INDEX_MAX:
            raise InvalidName(f"partition index {index} is out of range")
        return TopicName(self.domain, self.namespace, f"{self.base.local}{PARTITION_SUFFIX}{index}")

    @property
    def encoded_local(self) -> str:
        return encode_local(self.local)

    @property
    def storage_path(self) -> str:
        """`tenant/namespace/domain/encoded-local`: the tail of the paths of all records about it."""
        path = f"{self.namespace}/{self.domain.value}/{self.encoded_local}"
        return f"{path}/{self.segment}" if self.segment else path

    @staticmethod
    def from_storage_path(path: str) -> TopicName:
        """The name whose `storage_path` this is."""
        parts = path.split("/")
        if len(parts) not in (4, 5) or parts[2] not in _DOMAINS:
            raise InvalidName(f"{path!r} is not the path of a topic")
        domain = Domain(parts[2])
        return TopicName(
            domain, NamespaceName(parts[0], parts[1]), decode_local(parts[3]), "".join(parts[4:])
        )

    @property
    def rest_path(self) -> str:
        """The topic's path after `/admin/v2/`."""
        return f"{self.domain.value}/{self.namespace}/{self.encoded_local}"

    @property
    def schema_path(self) -> str:
        """`tenant/namespace/encoded-local` of the base: partitions share one schema."""
        return f"{self.namespace}/{self.base.encoded_local}"

    def __str__(self) -> str:
        return self.text

    def __hash__(self) -> int:
        return hash(self.text)


def _partition_index(local: str) -> int:
    if PARTITION_SUFFIX not in local or not (match := _PARTITION.fullmatch(local)) or not match[1].strip():
        return -1
    index = int(match[2])
    return index if index <= PARTITION_INDEX_MAX else -1


def _check_local(name: TopicName) -> None:
    local = name.local
    if not local.strip():
        raise InvalidName("a topic's local name must not be blank")
    try:
        size = len(local.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"topic name {local!r} is not valid Unicode") from None
    if size > LOCAL_BYTES_MAX:
        raise InvalidName(f"topic name of {size} bytes, limit {LOCAL_BYTES_MAX}")
    if local[-1] <= " ":
        raise InvalidName(f"topic name {local!r} ends in white space")
    if name.domain in (Domain.PERSISTENT, Domain.NON_PERSISTENT) and "/" in local:
        raise InvalidName(
            f"{name.namespace}/{local}: topic names with a cluster, or with a slash in the local name, "
            f"are not supported; use {name.domain.value}://tenant/namespace/topic"
        )
    if (name.domain is Domain.SEGMENT) != bool(name.segment):
        raise InvalidName("a segment's name ends in /<start>-<end>-<id>, and no other name does")
    if name.segment and not _SEGMENT.fullmatch(name.segment):
        raise InvalidName(f"{name.segment!r} is not of the form <hex start>-<hex end>-<segment id>")


@lru_cache(maxsize=20_000)
def _parse(text: str) -> TopicName:
    if not isinstance(text, str):  # Applications may be without a type checker.
        raise InvalidName(f"{text!r} is no name of a topic: give text")
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _parse_short(text)
    domain = _DOMAINS.get(scheme)
    if domain is None:
        raise InvalidName(f"{text!r}: unknown domain {scheme!r}, expected one of {', '.join(Domain)}")
    parts = rest.split("/", 2)
    if len(parts) != 3:
        hint = f"; did you mean {scheme}://{PUBLIC_DEFAULT}/{rest}?" if rest and len(parts) == 1 else ""
        raise InvalidName(f"{text!r} is not of the form {scheme}://tenant/namespace/topic{hint}")
    namespace = NamespaceName(parts[0], parts[1])
    if domain is not Domain.SEGMENT:
        return TopicName(domain, namespace, parts[2])
    parent, _, descriptor = parts[2].rpartition("/")
    match = _SEGMENT.fullmatch(descriptor)
    if not parent or not match:
        raise InvalidName(f"{text!r} does not end in /<parent topic>/<hex start>-<hex end>-<segment id>")
    start, end = int(match[1], 16), int(match[2], 16)
    if start > end:
        raise InvalidName(f"{text!r}: the hash range {descriptor} ends before it starts")
    return TopicName(domain, namespace, parent, f"{start:04x}-{end:04x}-{int(match[3])}")


def _parse_short(text: str) -> TopicName:
    parts = text.split("/")
    if len(parts) == 1:
        if text[:1] <= " " and text:
            raise InvalidName(f"topic name {text!r} starts with white space")
        return TopicName(Domain.PERSISTENT, PUBLIC_DEFAULT, text)
    if len(parts) == 3:
        return TopicName(Domain.PERSISTENT, NamespaceName(parts[0], parts[1]), parts[2])
    raise InvalidName(f"{text!r} is neither a full name, nor tenant/namespace/topic, nor a topic alone")
