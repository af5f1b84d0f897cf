"""What ZooKeeper's numbers mean to users of the port."""

import pytest

from anabranch.metadata.errors import (
    AlreadyExists,
    EphemeralParent,
    InvalidPath,
    MetadataError,
    NotEmpty,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
)
from anabranch.metadata.zookeeper.refusals import meaning


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-110, AlreadyExists),
        (-111, NotEmpty),
        (-108, EphemeralParent),
        (-8, InvalidPath),
        (-102, StoreForbidden),
        (-114, StoreForbidden),
        (-115, StoreForbidden),
        (-6, StoreForbidden),
        (-125, StoreFull),
        *((code, StoreUnavailable) for code in (-4, -7, -112, -118, -122, -127, -1, -9999)),
    ],
)
def test_each_refusal_has_an_error_of_the_port(code: int, kind: type[MetadataError]) -> None:
    assert type(meaning(code, "/a/b")) is kind


def test_only_what_may_come_right_by_itself_is_retryable() -> None:
    retryable = {code for code in range(-130, 0) if meaning(code, "/a").retryable}
    assert {-4, -7, -112, -118, -127} <= retryable
    assert retryable.isdisjoint({-6, -8, -102, -108, -110, -111, -114, -115, -124})


def test_an_error_names_the_node_or_its_parent() -> None:
    exists, under = meaning(-110, "/a/b"), meaning(-108, "/a/b")
    assert isinstance(exists, AlreadyExists)
    assert isinstance(under, EphemeralParent)
    assert (exists.path, under.path) == ("/a/b", "/a")
