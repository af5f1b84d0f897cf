"""The oldest hash of crypt(3): DES 25 times over zeros, with the password as its key. Pure.

It uses eight characters of seven bits. It is here only because Pulsar accepts it and users' files contain it. It works
bit by bit with the tables of the standard: some ten milliseconds a password.
"""

from __future__ import annotations

from typing import Final

_ALPHABET: Final = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

# Tables count bits from 1, the most significant first.
_KEY_HALVES: Final = (
    *(
        57,
        49,
        41,
        33,
        25,
        17,
        9,
        1,
        58,
        50,
        42,
        34,
        26,
        18,
        10,
        2,
        59,
        51,
        43,
        35,
        27,
        19,
        11,
        3,
        60,
        52,
        44,
        36,
    ),
    *(
        63,
        55,
        47,
        39,
        31,
        23,
        15,
        7,
        62,
        54,
        46,
        38,
        30,
        22,
        14,
        6,
        61,
        53,
        45,
        37,
        29,
        21,
        13,
        5,
        28,
        20,
        12,
        4,
    ),
)
_ROUND_KEY: Final = (
    *(14, 17, 11, 24, 1, 5, 3, 28, 15, 6, 21, 10, 23, 19, 12, 4, 26, 8, 16, 7, 27, 20, 13, 2),
    *(41, 52, 31, 37, 47, 55, 30, 40, 51, 45, 33, 48, 44, 49, 39, 56, 34, 53, 46, 42, 50, 36, 29, 32),
)
_SHIFTS: Final = (1, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 1)
_SPREAD: Final = tuple((4 * group + bit - 1) % 32 for group in range(8) for bit in range(6))
_MIXED: Final = (
    *(16, 7, 20, 21, 29, 12, 28, 17, 1, 15, 23, 26, 5, 18, 31, 10),
    *(2, 8, 24, 14, 32, 27, 3, 9, 19, 13, 30, 6, 22, 11, 4, 25),
)
# Eight boxes of four rows of sixteen numbers of four bits.
_BOXES: Final = (
    "e4d12fb83a6c59070f74e2d1a6cb953841e8d62bfc973a50fc8249175b3ea06d",
    "f18e6b34972dc05a3d47f28ec01a69b50e7ba4d158c6932fd8a13f42b67c05e9",
    "a09e63f51dc7b428d709346a285ecbf1d6498f30b12c5ae71ad069874fe3b52c",
    "7de3069a1285bc4fd8b56f03472c1ae9a690cb7df13e52843f06a1d8945bc72e",
    "2c417ab6853fd0e9eb2c47d150fa3986421bad78f9c5630eb8c71e2d6f09a453",
    "c1af92680d34e75baf427c9561de0b389ef528c3704a1db6432c95fabe17608d",
    "4b2ef08d3c975a61d0b7491ae35c2f8614bdc37eaf6805926bd814a7950fe23c",
    "d2846fb1a93e50c71fd8a374c56b0e927b419ce206adf35821e74a8dfc90356b",
)
_LAST: Final = tuple(
    row + 32 * (column % 2 == 0) + 8 * (column // 2) for row in range(8, 0, -1) for column in range(8)
)


def des_crypt(password: bytes, salt: str) -> str:
    """All 13 characters of the hash; `salt` is the first two of them."""
    keys = _round_keys(password)
    spread = _salted(salt)
    left, right = [0] * 32, [0] * 32
    for _ in range(25):
        for key in keys:
            left, right = right, [a ^ b for a, b in zip(left, _mixed(right, key, spread), strict=True)]
        left, right = right, left
    whole = left + right
    bits = [whole[place - 1] for place in _LAST] + [0, 0]
    groups = (bits[at : at + 6] for at in range(0, 66, 6))
    return salt + "".join(_ALPHABET[_number(group)] for group in groups)


def _round_keys(password: bytes) -> list[list[int]]:
    # Seven bits of each character, and one that is the key's parity.
    bits = [byte << 1 >> shift & 1 for byte in password[:8].ljust(8, b"\0") for shift in range(7, -1, -1)]
    halves = [bits[place - 1] for place in _KEY_HALVES]
    one, other, keys = halves[:28], halves[28:], []
    for shift in _SHIFTS:
        one, other = one[shift:] + one[:shift], other[shift:] + other[:shift]
        both = one + other
        keys.append([both[place - 1] for place in _ROUND_KEY])
    return keys


def _salted(salt: str) -> list[int]:
    """Each bit set in the salt swaps two bits."""
    spread = list(_SPREAD)
    number = _ALPHABET.index(salt[0]) | _ALPHABET.index(salt[1]) << 6
    for bit in range(12):
        if number >> bit & 1:
            spread[bit], spread[bit + 24] = spread[bit + 24], spread[bit]
    return spread


def _mixed(half: list[int], key: list[int], spread: list[int]) -> list[int]:
    wide = [half[place] ^ bit for place, bit in zip(spread, key, strict=True)]
    found: list[int] = []
    for box, at in zip(_BOXES, range(0, 48, 6), strict=True):
        row = wide[at] << 1 | wide[at + 5]
        value = int(box[16 * row + _number(wide[at + 1 : at + 5])], 16)
        found += (value >> 3 & 1, value >> 2 & 1, value >> 1 & 1, value & 1)
    return [found[place - 1] for place in _MIXED]


def _number(bits: list[int]) -> int:
    value = 0
    for bit in bits:
        value = value << 1 | bit
    return value
