"""Data plane. Parts of kernels that read protobuf from untrusted bytes, never at or past their `end`.

Addresses that come back as 0 mean that the bytes are malformed. A known field with the wrong wire type is skipped as an
unknown field, as protobuf does; groups, which none of Pulsar's messages ever had, count as malformed.
"""

from __future__ import annotations

from anabranch.columns.jit import inline, part
from anabranch.columns.memory import get_varint, load_u8, store_8


@inline
def get_tag(at: int, end: int) -> tuple[int, int]:
    """The next field's tag and the address behind it."""
    tag = load_u8(at)
    if tag < 0x80:
        at += 1
    else:
        tag, at = get_varint(at, end)
    return (tag, at) if 8 <= tag <= 0xFFFFFFFF else (0, 0)


@inline
def get_length(at: int, end: int) -> tuple[int, int]:
    """The length of a field's bytes and where they begin; all of them lie before `end`."""
    size, at = get_varint(at, end)
    return (size, at) if at != 0 and 0 <= size <= end - at else (0, 0)


@inline
def skip(at: int, end: int, tag: int) -> int:
    """The address behind a field whose tag was read."""
    kind = tag & 7
    if kind == 0:
        return get_varint(at, end)[1]
    if kind == 2:
        size, at = get_length(at, end)
        return at + size if at != 0 else 0
    size = 8 if kind == 1 else 4
    return at + size if (kind == 1 or kind == 5) and size <= end - at else 0


@part
def get_pair(at: int, end: int) -> tuple[int, int, int, int, bool]:
    """Name and value of a KeyValue, each as address and size, and whether it could be read."""
    name = name_size = item = item_size = 0
    while at < end:
        tag, at = get_tag(at, end)
        if at == 0:
            break
        if tag == 0x0A:
            name_size, name = get_length(at, end)
            at = name + name_size
        elif tag == 0x12:
            item_size, item = get_length(at, end)
            at = item + item_size
        else:
            at = skip(at, end, tag)
        if at == 0:
            break
    return name, name_size, item, item_size, at != 0


@part
def is_utf8(at: int, size: int) -> bool:
    """Whether bytes are text: no cut, overlong or surrogate sequences."""
    end = at + size
    while at < end:
        first = load_u8(at)
        at += 1
        if first < 0x80:
            continue
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if first < 0xC2 or first > 0xF4 or end - at < more:
            return False
        second = load_u8(at)
        low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        high = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        if second < low or second > high:
            return False
        for later in range(1, more):
            if load_u8(at + later) & 0xC0 != 0x80:
                return False
        at += more
    return True


@inline
def _base64_value(digit: int) -> int:
    if 65 <= digit <= 90:
        return digit - 65
    if 97 <= digit <= 122:
        return digit - 71
    if 48 <= digit <= 57:
        return digit + 4
    if digit == 43:
        return 62
    return 63 if digit == 47 else -1


@part
def put_from_base64(out: int, at: int, size: int) -> int:
    """Writes what base64 text stands for; returns how many bytes, or -1 if it is none. Padding may be missing."""
    while size > 0 and size % 4 != 1 and load_u8(at + size - 1) == 61:
        size -= 1
    if size % 4 == 1:
        return -1
    start = out
    bits = held = 0
    for place in range(size):
        digit = _base64_value(load_u8(at + place))
        if digit < 0:
            return -1
        bits = bits << 6 | digit
        held += 6
        if held >= 8:
            held -= 8
            store_8(out, bits >> held & 0xFF)
            out += 1
            bits &= (1 << held) - 1
    return out - start
