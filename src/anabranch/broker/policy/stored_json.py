"""The common base of all stored policies: JSON under Pulsar's names, and errors that are shown to the user."""

from __future__ import annotations

from typing import Annotated, Any, Self

import msgspec

# Java's int and long: larger numbers could be stored here but not be read there.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Count64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class InvalidValue(ValueError):
    """A policy that contradicts itself; the message is shown to the user. `status` is what admin clients expect."""

    status = 412


class BadSetting(InvalidValue):
    """An invalid value that Pulsar answers as a bad request."""

    status = 400


class JsonStruct(msgspec.Struct, frozen=True, kw_only=True):
    """A value stored and served as JSON. Python names become Pulsar's through each class's `rename`."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return msgspec.json.decode(data, type=cls)

    @classmethod
    def readable(cls, data: bytes) -> bytes:
        """The encoded value, if it can be read again. InvalidValue if not: a record that cannot be read would keep
        every broker from starting."""
        try:
            cls.decode(data)
        except msgspec.DecodeError as error:
            raise InvalidValue(f"Invalid value: {error}") from None
        return data

    def builtins(self) -> dict[str, Any]:
        """Plain dicts and lists with Pulsar's names, without the fields that are not set."""
        return {k: v for k, v in msgspec.to_builtins(self).items() if v is not None}
