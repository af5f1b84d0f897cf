"""Regular expressions for names, matched in time that grows with the name only. Pure.

Clients send patterns, and a broker's one thread runs them over every name of a namespace: what backtracks (Python's own
`re` does) can be made to run for ever with a dozen characters. So a pattern becomes a machine that looks at each
character once; its states are made as they are needed, and forgotten when there are too many. That, too, is work, and
has an end.

What Python's, Java's and RE2's expressions have in common is read, and Java's quoting. What needs a look back or ahead
is refused.
"""

from __future__ import annotations

from string import hexdigits
from typing import Final, NamedTuple

NODES_MAX: Final = 2_000
STATES_MAX: Final = 1_000
# Nodes looked at to make states, for a list of names: 30 ms. Most patterns have a few hundred such looks in their life;
# one whose states are never the same twice has as many for each character as it has nodes.
WORK_MAX: Final = 100_000
WORK_PER_NAME: Final = 100

_DIGITS: Final = (("0", "9"),)
_WORD: Final = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE: Final = (("\t", "\r"), (" ", " "))
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_NO_LIMIT: Final = -1


class InvalidPattern(ValueError):
    """Not an expression that can be read here; the message says what is in the way."""


class _Chars(NamedTuple):
    """Any character in one of the ranges, or in none of them."""

    ranges: tuple[tuple[str, str], ...]
    is_negated: bool = False

    def has(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) is not self.is_negated


_ANY: Final = _Chars((), is_negated=True)


class _Node:
    """`chars` lead to `then`; without them, `empty` is where one may go without a character. `at` must hold first."""

    __slots__ = ("at", "chars", "empty", "then")

    def __init__(self) -> None:
        self.chars: _Chars | None = None
        self.then: _Node | None = None
        self.empty: list[_Node] = []
        self.at = ""


class _Part(NamedTuple):
    """A piece of the machine: every way through it goes from `first` to `last`."""

    first: _Node
    last: _Node


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._nodes = 0

    def read(self) -> _Part:
        part = self._choice()
        if self._at < len(self._text):
            raise InvalidPattern("a ) closes nothing")
        return part

    # -- structure

    def _choice(self) -> _Part:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        first, last = self._node(), self._node()
        for part in parts:
            first.empty.append(part.first)
            part.last.empty.append(last)
        return _Part(first, last)

    def _sequence(self) -> _Part:
        first = last = self._node()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            part = self._repeated()
            last.empty.append(part.first)
            last = part.last
        return _Part(first, last)

    def _repeated(self) -> _Part:
        start = self._at
        part = self._atom()
        end = self._at
        bounds = self._bounds()
        if bounds is None:
            return part
        if self._text[self._at : self._at + 1] == "+":
            raise InvalidPattern("possessive repetition is not supported")
        self._take("?")  # What is taken first does not matter where the whole name must match.
        after = self._at
        if self._bounds() is not None:
            raise InvalidPattern("a repetition of a repetition needs brackets")
        low, high = bounds

        def again() -> _Part:
            """The same once more: the machine has no counters."""
            self._at = start
            made = self._atom()
            assert self._at == end
            return made

        first = last = self._node()
        for n in range(low):
            copy = part if n == 0 else again()
            last.empty.append(copy.first)
            last = copy.last
        if high == _NO_LIMIT:
            copy = part if low == 0 else again()
            loop = self._node()
            last.empty.append(loop)
            loop.empty.append(copy.first)
            copy.last.empty.append(loop)
            last = loop
        else:
            over = self._node()
            for n in range(low, high):
                copy = part if n == 0 else again()
                last.empty += [copy.first, over]
                last = copy.last
            last.empty.append(over)
            last = over
        self._at = after
        return _Part(first, last)

    def _bounds(self) -> tuple[int, int] | None:
        if self._take("*"):
            return 0, _NO_LIMIT
        if self._take("+"):
            return 1, _NO_LIMIT
        if self._take("?"):
            return 0, 1
        if not self._take("{"):
            return None
        inside, closed, _ = self._text[self._at :].partition("}")
        low, comma, high = inside.partition(",")
        if not closed or not _is_number(low) or not (high == "" or _is_number(high)):
            raise InvalidPattern("a { begins a repetition as {2}, {2,} or {2,4}; write \\{ for the character")
        self._at += len(inside) + 1
        least = int(low)
        most = least if not comma else int(high) if high else _NO_LIMIT
        if most != _NO_LIMIT and most < least:
            raise InvalidPattern(f"{{{inside}}} ends before it begins")
        return least, most

    def _atom(self) -> _Part:
        char = self._text[self._at]
        self._at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return self._one(self._set())
        if char == "\\":
            return self._escape()
        if char in "*+?{":
            raise InvalidPattern(f"{char} repeats nothing")
        if char in "^$":
            part = _Part(self._node(), self._node())
            part.first.at = char
            part.first.empty.append(part.last)
            return part
        return self._one(_ANY if char == "." else _just(char))

    def _group(self) -> _Part:
        if self._take("?") and not self._take(":"):
            rest = self._text[self._at :]
            name = rest.removeprefix("P")
            inside, closed, _ = name[1:].partition(">")
            if not (name.startswith("<") and closed and inside.isidentifier()):
                raise InvalidPattern("looking ahead or back, and flags, are not supported")
            self._at += len(rest) - len(name) + len(inside) + 2
        part = self._choice()
        if not self._take(")"):
            raise InvalidPattern("a ( is not closed")
        return part

    # -- characters

    def _escape(self) -> _Part:
        if self._take("Q"):
            quoted, _, _ = self._text[self._at :].partition("\\E")
            self._at = min(len(self._text), self._at + len(quoted) + 2)
            first = last = self._node()
            for char in quoted:
                part = self._one(_just(char))
                last.empty.append(part.first)
                last = part.last
            return _Part(first, last)
        return self._one(self._escaped())

    def _escaped(self) -> _Chars:
        if self._at == len(self._text):
            raise InvalidPattern("a \\ at the end quotes nothing")
        char = self._text[self._at]
        self._at += 1
        if char.lower() in _CLASSES:
            return _Chars(_CLASSES[char.lower()], is_negated=char.isupper())
        if char in _CONTROLS:
            return _just(_CONTROLS[char])
        if char in "xu":
            count = 2 if char == "x" else 4
            digits = self._text[self._at : self._at + count]
            self._at += count
            if len(digits) < count or not set(digits) <= set(hexdigits):
                raise InvalidPattern(f"\\{char} needs {count} hexadecimal digits")
            return _just(chr(int(digits, 16)))
        if char.isalnum():
            raise InvalidPattern(f"\\{char} is not supported")
        return _just(char)

    def _set(self) -> _Chars:
        is_negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            low = self._member()
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] > high[0][0]:
                    raise InvalidPattern("a range in [] goes from one character to a later one")
                ranges.append((low[0][0], high[0][0]))
            else:
                ranges += low
        return _Chars(tuple(ranges), is_negated)

    def _member(self) -> tuple[tuple[str, str], ...]:
        if self._at >= len(self._text):
            raise InvalidPattern("a [ is not closed")
        char = self._text[self._at]
        self._at += 1
        if char == "[" or self._text[self._at - 1 : self._at + 1] == "&&":
            raise InvalidPattern("sets within sets are not supported")
        if char != "\\":
            return ((char, char),)
        found = self._escaped()
        if found.is_negated:
            raise InvalidPattern("a class and its opposite in one [] are not supported")
        return found.ranges

    # -- the machine

    def _one(self, chars: _Chars) -> _Part:
        part = _Part(self._node(), self._node())
        part.first.chars, part.first.then = chars, part.last
        return part

    def _node(self) -> _Node:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise InvalidPattern("it repeats too much")
        return _Node()

    def _take(self, char: str) -> bool:
        if self._text[self._at : self._at + 1] != char:
            return False
        self._at += 1
        return True


class _State:
    """All nodes that may be reached by what was read so far."""

    __slots__ = ("is_end", "next", "nodes")

    def __init__(self, nodes: frozenset[_Node], is_end: bool) -> None:
        self.nodes = nodes
        self.is_end = is_end
        self.next: dict[str, _State] = {}


class NamePattern:
    """`InvalidPattern` where it cannot be read, and by `matches` where it takes too long."""

    def __init__(self, text: str) -> None:
        self._work_left = WORK_MAX
        try:
            part = _Reader(text).read()
        except RecursionError:
            raise InvalidPattern("its brackets are too deep") from None
        self._first, self._last = part
        self._forget()

    def begin(self, names: int) -> None:
        """So many names will be looked at now."""
        self._work_left = WORK_MAX + WORK_PER_NAME * names

    def matches(self, name: str) -> bool:
        """Whether all of the name is as the pattern says."""
        state = self._start
        for char in name:
            after = state.next.get(char)
            if after is None:
                after = self._after(state, char)
            state = after
            if not state.nodes:
                return False
        return state.is_end

    def _forget(self) -> None:
        self._states: dict[frozenset[_Node], _State] = {}
        # Not among the others: only of an empty name is the beginning the end.
        nodes = _reached([self._first], "^")
        self._start = _State(nodes, self._last in _reached(nodes, "^$"))

    def _after(self, state: _State, char: str) -> _State:
        if len(self._states) > STATES_MAX:
            self._forget()
        self._work_left -= len(state.nodes)
        if self._work_left < 0:
            raise InvalidPattern("it takes too long for the names that there are")
        moved = [node.then for node in state.nodes if node.chars is not None and node.chars.has(char)]
        after = self._state(_reached([one for one in moved if one is not None], ""))
        state.next[char] = after
        return after

    def _state(self, nodes: frozenset[_Node]) -> _State:
        found = self._states.get(nodes)
        if found is None:
            found = self._states[nodes] = _State(nodes, self._last in _reached(nodes, "$"))
        return found


def _reached(nodes: list[_Node] | frozenset[_Node], at: str) -> frozenset[_Node]:
    """Those, and where one may go from them without a character; `at` says which ends of the name are here."""
    found = set(nodes)
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.at and node.at not in at:
            continue
        for one in node.empty:
            if one not in found:
                found.add(one)
                waiting.append(one)
    return frozenset(found)


def _just(char: str) -> _Chars:
    return _Chars(((char, char),))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 5
