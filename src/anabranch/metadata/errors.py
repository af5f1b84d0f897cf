"""What a metadata store can refuse, and which refusals may be retried.

MetadataError
|-- InvalidPath         the path cannot name a node
|-- ValueTooLarge       the value is over VALUE_BYTES_MAX
|-- AlreadyExists       create of a node that is there
|-- VersionConflict     compare-and-set against another version; carries the current one
|-- NotEmpty            delete of a node that has children
|-- EphemeralParent     a child was asked for below an ephemeral
|-- NotACounter         next_id on a node that holds something else
|-- StoreClosed         the store was closed by this process
|-- StoreInUse          another process owns the embedded store
|-- StoreDamaged        the stored bytes are not a metadata store, or no longer one
|-- StoreTooNew         written by a newer release
|-- BadStoreUrl         the URL of a store cannot be read
|-- StoreAbsent         the store has no folder for this cluster
|-- StoreForbidden      the store does not allow it to this process
`-- StoreUnavailable    retryable; a write may or may not have taken effect
    `-- StoreFull       retryable; the disk has no room, the write did not take effect
"""

from __future__ import annotations

from anabranch.errors import AnabranchError


class MetadataError(AnabranchError):
    """Any refusal by a metadata store."""

    retryable = False
    code = 1  # ServerError.MetadataError of the wire protocol.


class InvalidPath(MetadataError):
    """The path cannot name a node in every store we support."""


class ValueTooLarge(MetadataError):
    """The value is larger than every store we support can keep in one node."""


class AlreadyExists(MetadataError):
    """The node is there already."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} exists already")
        self.path = path


class VersionConflict(MetadataError):
    """The node is not at the version the caller named. `current` is None when it is absent."""

    def __init__(self, path: str, expected: int, current: int | None) -> None:
        found = "absent" if current is None else f"at version {current}"
        super().__init__(f"{path} is {found}, not at version {expected}")
        self.path = path
        self.expected = expected
        self.current = current


class NotEmpty(MetadataError):
    """The node still has children."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} has children; delete them first")
        self.path = path


class EphemeralParent(MetadataError):
    """Ephemerals cannot have children."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is ephemeral and cannot have children")
        self.path = path


class NotACounter(MetadataError):
    """The node exists and does not hold a counter's decimal number."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} does not hold a counter")
        self.path = path


class StoreClosed(MetadataError):
    """The store was closed; open a new one."""

    def __init__(self) -> None:
        super().__init__("the metadata store is closed")


class StoreInUse(MetadataError):
    """The embedded store belongs to one process at a time."""


class StoreDamaged(MetadataError):
    """The stored bytes are not a metadata store, or no longer one."""


class StoreTooNew(MetadataError):
    """A newer release wrote this store; this one would misread it."""


class BadStoreUrl(MetadataError):
    """The URL names no store that this release knows."""


class StoreAbsent(MetadataError):
    """The store answers, and there is no folder for this cluster in it."""


class StoreForbidden(MetadataError):
    """The store answers, and does not allow what was asked: credentials, an ACL, or a release that is too old."""


class StoreUnavailable(MetadataError):
    """No answer came. Read before repeating a write: it may have taken effect."""

    retryable = True


class StoreFull(StoreUnavailable):
    """The disk has no room. The write did not take effect; later ones may."""
