"""Data plane. Functions by which kernels read and write memory: addresses, bytes, words, variable-length numbers.

Kernels take addresses (int64) instead of arrays: Arrow buffers, received entries and NumPy arrays then need one
compiled version, not one for each kind, and an entry need not be copied to where others lie. Kernels check bounds,
these functions do not. All numbers are int64, as Numba turns a mix of signed and unsigned ones into floats.

`put_*` returns the address behind what it wrote. `copy` may write up to `SLACK` bytes more than it was asked to, so
every output buffer has that much room at its end; it reads no byte at or after `source_end`.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from anabranch.columns.jit import inline

SLACK: Final = 64

_I64: Final = ir.IntType(64)


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _loader(bits: int, *, signed: bool = False, swap: bool = False) -> Any:
    kind = ir.IntType(bits)

    def load(typing_context: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(builder, args[0], kind), align=1)
            if swap:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

        return types.int64(types.int64), build

    return intrinsic(load)


def _storer(bits: int, *, swap: bool = False) -> Any:
    kind = ir.IntType(bits)

    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number = builder.trunc(args[1], kind) if bits < 64 else args[1]
            if swap:
                number = builder.bswap(number)
            builder.store(number, _pointer(builder, args[0], kind), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), build

    return intrinsic(store)


load_u8 = _loader(8)
load_u32 = _loader(32)
load_i32 = _loader(32, signed=True)
load_u32_be = _loader(32, swap=True)
load_i64 = _loader(64)
store_8 = _storer(8)
store_32 = _storer(32)
store_32_be = _storer(32, swap=True)
store_64 = _storer(64)


def _copy_32(typing_context: Any, target: Any, source: Any) -> Any:
    kind = ir.VectorType(_I64, 4)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(_pointer(builder, args[1], kind), align=1)
        builder.store(value, _pointer(builder, args[0], kind), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), build


def _move(typing_context: Any, target: Any, source: Any, size: Any) -> Any:
    byte = ir.IntType(8)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source, size = args
        cgutils.raw_memcpy(builder, _pointer(builder, target, byte), _pointer(builder, source, byte), size, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), build


def _prefetch(typing_context: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To be read, to be kept in all caches, data.
        builder.call(fetch, [builder.inttoptr(args[0], pointer), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), build


prefetch = intrinsic(_prefetch)
copy_32 = intrinsic(_copy_32)
move = intrinsic(_move)


@inline
def copy(target: int, source: int, size: int, source_end: int) -> int:
    """Copies, and returns the address behind. A short copy in whole words saves a call, at half the time."""
    if size > 256 or source + size + 31 > source_end:
        move(target, source, size)
    else:
        at = 0
        while at < size:
            copy_32(target + at, source + at)
            at += 32
    return target + size


@inline
def put_varint(at: int, value: int) -> int:
    """Writes a number as protobuf does; a negative one takes ten bytes."""
    if value >= 0:
        while value > 0x7F:
            store_8(at, value & 0x7F | 0x80)
            at += 1
            value >>= 7
        store_8(at, value)
        return at + 1
    for _ in range(9):
        store_8(at, value & 0x7F | 0x80)
        at += 1
        value >>= 7
    store_8(at, 1)
    return at + 1


@inline
def get_varint(at: int, end: int) -> tuple[int, int]:
    """The number and the address behind it; address 0 if it does not end before `end` or within ten bytes."""
    value = 0
    shift = 0
    while at < end and shift < 70:
        byte = load_u8(at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, 0


@inline
def is_set(bits: int, index: int) -> bool:
    """Whether the bit is set in an Arrow bitmap; true if there is no bitmap (address 0)."""
    return bits == 0 or load_u8(bits + (index >> 3)) >> (index & 7) & 1 != 0


@inline
def clear_bit(bits: int, index: int) -> None:
    at = bits + (index >> 3)
    store_8(at, load_u8(at) & ~(1 << (index & 7)))


@inline
def set_bit(bits: int, index: int) -> None:
    at = bits + (index >> 3)
    store_8(at, load_u8(at) | 1 << (index & 7))
