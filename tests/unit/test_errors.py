"""Errors that are kept for later callers."""

from __future__ import annotations

import pytest

from anabranch.errors import MalformedFrame, unraised
from anabranch.metadata.errors import StoreClosed, VersionConflict
from anabranch.storage.port import LogDamagedError


@pytest.mark.parametrize(
    "error",
    [
        MalformedFrame("no frame"),
        StoreClosed(),
        VersionConflict("/path", 3, None),
        LogDamagedError(7, 5, None, "0001.wal", 4096),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_made_again_whatever_its_class_asks_for(error: Exception) -> None:
    try:
        raise error
    except Exception as raised:
        made = unraised(raised)
    assert type(made) is type(error)
    assert (str(made), made.args, vars(made)) == (str(error), error.args, vars(error))


def test_an_error_that_is_made_again_holds_no_frames() -> None:
    with pytest.raises(MalformedFrame) as raised:
        raise MalformedFrame("no frame") from ValueError("its cause")
    assert raised.value.__traceback__ is not None
    made = unraised(raised.value)
    assert (made.__traceback__, made.__cause__, made.__context__) == (None, None, None)
