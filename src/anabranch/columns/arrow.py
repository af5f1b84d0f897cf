"""Data plane. Arrow columns as kernels see them: addresses of offsets, bytes and validity, of any string type."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Column = Any  # pa.Array or pa.ChunkedArray; pyarrow ships no types.


class ColumnView(NamedTuple):
    """A column of byte strings. All numbers, so that a kernel takes it as it is; `Held` keeps the memory alive.

    `valid` is the address of the validity bits or 0 if no row is null, `shift` the first row's bit in them. `offsets`
    is the address of the first row's offset, int64 if `wide`, else int32. `end` is the end of the data: nothing is read
    from there on.
    """

    rows: int
    offsets: int
    wide: int
    data: int
    end: int
    valid: int
    shift: int


class Held(NamedTuple):
    """A view, and the array that owns its memory. Keep both until the kernel returns."""

    view: ColumnView
    array: Column
    is_text: bool
    data_bytes: int


NOTHING = ColumnView(0, 0, 0, 0, 0, 0, 0)


def strings(column: Column, name: str = "column") -> Held:
    """The view of a string or binary column of any kind, sliced, chunked or dictionary-encoded."""
    array = _one_array(column)
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    is_text = bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is(kind, "is_string_view"))
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_null(kind) or _is(kind, "is_binary_view"):
        array = array.cast(pa.large_binary())
    elif _is(kind, "is_string_view"):
        array = array.cast(pa.large_string())
    elif not (is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise TypeError(f"{name} is of type {kind}: cast it to string or binary first")
    wide = bool(pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type))
    _, offsets, data = array.buffers()
    width = 8 if wide else 4
    rows = len(array)
    if rows == 0 or offsets is None or offsets.size == 0:
        return Held(NOTHING, array, is_text, 0)
    first = offsets.address + array.offset * width
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)
    used = int(bounds[array.offset + rows]) - int(bounds[array.offset])
    start, size = (data.address, data.size) if data is not None else (0, 0)
    view = ColumnView(rows, first, int(wide), start, start + size, *validity(array))
    return Held(view, array, is_text, used)


def validity(array: Column) -> tuple[int, int]:
    """The address of an array's validity bits, 0 if no row is null, and the first row's place in them."""
    bits = array.buffers()[0]
    return (bits.address, array.offset) if bits is not None and array.null_count else (0, 0)


def milliseconds(column: Column, name: str = "event_time") -> Column:
    """An int64 array of milliseconds since 1970, from integers or timestamps of any unit."""
    array = _one_array(column)
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        # A time within a millisecond belongs to that millisecond, so finer units are cut off without an error.
        array = array.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    elif pa.types.is_integer(kind) or pa.types.is_null(kind):
        array = array.cast(pa.int64())
    else:
        raise TypeError(f"{name} is of type {kind}: give a timestamp, or milliseconds since 1970 as integers")
    if len(array) > array.null_count and pc.min(array).as_py() < 0:
        raise ValueError(f"{name} has times before 1970, which messages cannot carry")
    return array


def pairs(column: Column) -> Column:
    """Properties as one map array: a map column as it is, or a struct column, whose null fields are left out."""
    array = _one_array(column)
    kind = array.type
    if pa.types.is_map(kind):
        return array
    if not pa.types.is_struct(kind):
        raise TypeError(f"properties are of type {kind}: give map<string, string> or a struct of strings")
    rows, names = len(array), [field.name for field in kind]
    # `flatten` puts the struct's own nulls into its fields.
    fields = [one.cast(pa.large_string()) for one in array.flatten()]
    turn = np.arange(rows * len(names), dtype=np.int64)
    key = pa.array(np.tile(np.arange(len(names), dtype=np.int32), rows))
    items = pa.concat_arrays(fields) if fields else pa.array([], pa.large_string())
    width = max(1, len(names))
    return pa.MapArray.from_arrays(
        pa.array(np.arange(rows + 1, dtype=np.int32) * len(names), pa.int32()),
        pa.array(names, pa.string()).take(key),
        items.take(pa.array(turn % width * rows + turn // width)),
    )


def address_of(array: npt.NDArray[Any]) -> int:
    """The address of a NumPy array's elements."""
    address: int = array.__array_interface__["data"][0]
    return address


def _one_array(column: Column) -> Column:
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    kind = column.type
    # Joined columns may exceed the two gigabytes that 32-bit offsets can address.
    if column.nbytes >= 1 << 31 and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        column = column.cast(pa.large_string() if pa.types.is_string(kind) else pa.large_binary())
    joined = column.combine_chunks()
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _is(kind: Any, test: str) -> bool:
    return bool(getattr(pa.types, test)(kind))
