"""Extended grapheme clusters exactly as the installed `tokenizers` library sees them.

The library applies a charsmap cluster by cluster, so ids depend on its Unicode tables. Instead
of shipping tables of one Unicode version, every code point is classified by asking the library:
a tiny charsmap makes a cluster boundary visible, because a cluster of less than 6 bytes is
replaced *whole* when a prefix of it is a key. A class that cannot be seen that way cannot
change an id either.

Unicode rules (UAX 29): GB3-GB9b, GB9c (Indic conjuncts), GB11 (emoji joined by ZWJ). GB12/13
(flags) only joins 4-byte characters, which are always taken one by one, and is left out.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import normalizers

from hedgerow_gateway.tokenizer.unigram import darts

Classes = npt.NDArray[np.uint8]
Points = npt.NDArray[np.int64]
_CODE_POINTS = 0x110000
# Planes 2-13 hold ideographs or nothing, 15 and 16 are private: "other" in every version.
_PROBED = ((1, 0xD800), (0xE000, 0x20000), (0xE0000, 0xE1000))


class Kind(IntEnum):
    """What a code point does to cluster boundaries."""

    OTHER = 0
    CONTROL = 1
    CR = 2
    LF = 3
    EXTEND = 4
    LINKED_EXTEND = 5
    LINKER = 6
    ZWJ = 7
    SPACING = 8
    PREPEND = 9
    PICTURE = 10
    CONSONANT = 11
    L = 12
    V = 13
    T = 14
    LV = 15
    LVT = 16


KINDS = len(Kind)
_JOINS_LEFT = {Kind.EXTEND, Kind.LINKED_EXTEND, Kind.LINKER, Kind.ZWJ, Kind.SPACING}
_ALONE = {Kind.CONTROL, Kind.CR, Kind.LF}
_HANGUL = {
    Kind.L: {Kind.L, Kind.V, Kind.LV, Kind.LVT},
    Kind.V: {Kind.V, Kind.T},
    Kind.LV: {Kind.V, Kind.T},
    Kind.T: {Kind.T},
    Kind.LVT: {Kind.T},
}


class State(NamedTuple):
    """All that the rules need to know about the cluster so far.

    picture: 1 after a picture and its extenders, 2 when a ZWJ followed (GB11)
    conjunct: 1 after a consonant, 2 when a linker followed (GB9c)
    """

    last: Kind
    picture: int = 0
    conjunct: int = 0


def joins(state: State, kind: Kind) -> bool:
    """True when a character of `kind` belongs to the cluster described by `state`."""
    if state.last is Kind.CR and kind is Kind.LF:
        return True
    if state.last in _ALONE or kind in _ALONE:
        return False
    if kind in _JOINS_LEFT or state.last is Kind.PREPEND:
        return True
    if kind in _HANGUL.get(state.last, ()):
        return True
    if kind is Kind.PICTURE and state.picture == 2:
        return True
    return kind is Kind.CONSONANT and state.conjunct == 2


def follow(state: State | None, kind: Kind) -> State:
    """The state after `kind`; `state` is None at the start of a cluster."""
    picture = conjunct = 0
    if kind is Kind.PICTURE:
        picture = 1
    elif state is not None and state.picture == 1 and kind is Kind.ZWJ:
        picture = 2
    elif state is not None and state.picture == 1:
        picture = int(kind in (Kind.EXTEND, Kind.LINKED_EXTEND, Kind.LINKER))
    if kind is Kind.CONSONANT:
        conjunct = 1
    elif state is not None and state.conjunct:
        if kind is Kind.LINKER:
            conjunct = 2
        elif kind in (Kind.LINKED_EXTEND, Kind.ZWJ):
            conjunct = state.conjunct
    return State(kind, picture, conjunct)


class Automaton(NamedTuple):
    """The rules as a table. The state after the first character of kind k is k.

    step: uint8 [num_states, KINDS]; 0xFF = boundary, else the next state
    """

    step: npt.NDArray[np.uint8]


def automaton() -> Automaton:
    """Enumerate every reachable state."""
    states = [follow(None, kind) for kind in Kind]
    rows: list[list[int]] = []
    for state in states:
        row: list[int] = []
        for kind in Kind:
            if not joins(state, kind):
                row.append(0xFF)
                continue
            after = follow(state, kind)
            if after not in states:
                states.append(after)
            row.append(states.index(after))
        rows.append(row)
    return Automaton(np.array(rows, np.uint8))


def classify() -> Classes:
    """uint8 [0x110000] of Kind, learned from the installed library in about a second."""
    kinds = np.zeros(_CODE_POINTS, np.uint8)
    probed = np.concatenate([np.arange(*span, dtype=np.int64) for span in _PROBED])

    def mark(candidates: Points, kind: Kind, key: str, template: str) -> Points:
        hits = candidates[_joined(candidates, key, template)]
        kinds[hits] = kind
        return hits

    left = mark(probed, Kind.SPACING, "a", "a{}")
    extend = mark(left, Kind.EXTEND, "™", "😀{}\u200d™\u0301")
    extend = np.union1d(extend, [0x200D])
    mark(extend, Kind.LINKED_EXTEND, "क", "क\u094d{}क\u0301")
    mark(extend, Kind.LINKER, "क", "क{}क\u0301")
    kinds[0x200D] = Kind.ZWJ
    rest = np.setdiff1d(probed, left)
    boundary = rest[~_joined(rest, "\u0300", "{}\u0300\u0301")]
    kinds[boundary] = kinds[0] = Kind.CONTROL
    kinds[0x0D], kinds[0x0A] = Kind.CR, Kind.LF
    rest = np.setdiff1d(rest, boundary)
    rest = np.setdiff1d(rest, mark(rest, Kind.PREPEND, "a", "{}a\u0301"))
    rest = np.setdiff1d(rest, mark(rest, Kind.PICTURE, "™", "{}\u200d™\u0301"))
    rest = np.setdiff1d(rest, mark(rest, Kind.CONSONANT, "क", "{}\u094dक\u0301"))
    mark(rest, Kind.L, "\u1100", "{}\u1100\u0301")
    before_v = rest[_joined(rest, "\u1161", "{}\u1161\u0301")]
    before_t = rest[_joined(rest, "\u11a8", "{}\u11a8\u0301")]
    kinds[np.setdiff1d(before_t, before_v)] = Kind.T
    kinds[np.intersect1d(before_t, before_v)] = Kind.V
    # A syllable never joins what stands before it, except a leading consonant; V and T do.
    syllables = np.arange(0xAC00, 0xD7A4)
    kinds[syllables[kinds[syllables] == Kind.V]] = Kind.LV
    kinds[syllables[kinds[syllables] == Kind.T]] = Kind.LVT
    return kinds


def _joined(points: Points, key: str, template: str) -> npt.NDArray[np.bool_]:
    """For each code point put into `template`: is the key's cluster part of a longer one?

    The key becomes "b". A cluster that starts with the key and is short becomes "b" whole, so
    the mark behind the key vanishes; inside a longer cluster only the key itself is replaced.
    """
    normalizer = normalizers.Precompiled(darts.build({key: "b"}))
    texts = [template.format(chr(point)) for point in points.tolist()]
    # NUL is a control: no cluster reaches across it, and no charsmap can have it as a key.
    lines = normalizer.normalize_str("\0".join(texts)).split("\0")
    if template.endswith("{}"):
        return np.array([line == "b" for line in lines], np.bool_)
    return np.array([line.endswith("\u0301") for line in lines], np.bool_)
