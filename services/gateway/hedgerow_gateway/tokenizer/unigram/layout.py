"""Where everything lies: one block of tables (read only, shared), one of scratch per thread.

Both are plain uint8 arrays, so that a call from Python passes two pointers instead of twenty,
and the tables can be kept in a file as they are.

Tables start with a header of int64 fields (`Field`; sections are byte offsets):
  PAGES     uint32 [0x110000 >> 7]: which page of PROPS a code point's 128 neighbours share
  PROPS     uint32 [pages, 128]: grapheme kind (5 bits), Action (3 bits), offset into BLOB (24)
  STEP      uint8 [states, 32]: the grapheme automaton; 0xFF = boundary
  UNITS     uint32: the charsmap's own double array, for keys of several characters
  BLOB      its replacements, NUL-terminated, recoded (see `charsmap.recode`)
  JOINS     uint32 [129, 5]: bit b of row a is set when some piece holds byte a before byte b
            (128 stands for every byte above ASCII)
  NODES     16 bytes each: uint32 base, uint32 parent, float64 score (-inf: no piece ends here)
  IDS       uint32 per node: the piece that ends there
  SLOTS     32 bytes each: 24 bytes of key, uint32 id: pieces that are their own best split
"""

from __future__ import annotations

from enum import IntEnum

LAYOUT_VERSION = 1
CODE_POINTS = 0x110000
PAGE_BITS = 7


class Field(IntEnum):
    """Header fields, int64 each."""

    VERSION = 0
    PAGES = 1
    PROPS = 2
    STEP = 3
    UNITS = 4
    NUM_UNITS = 5
    BLOB = 6
    JOINS = 7
    NODES = 8
    IDS = 9
    SLOTS = 10
    SLOT_SHIFT = 11
    UNK_ID = 12
    UNK_SCORE = 13  # float64
    MAX_PIECE_BYTES = 14
    MAX_GROWTH = 15
    PIPELINE = 16
    PLAIN_ASCII = 17
    ROOT_BASE = 18
    SLOT_MASK = 19


HEADER_BYTES = 256


class Pipeline(IntEnum):
    """The three ways in circulation to turn normalized text into words."""

    A = 0  # spaces collapse; a space at the end is a word of its own
    B = 1  # white space separates and vanishes
    C = 2  # as A, with white space at the end stripped


class Action(IntEnum):
    """What normalization does with a character that stands alone in its cluster."""

    COPY = 0
    REPLACE = 1
    SPACE = 2
    MARK = 3  # U+2581, the visible word mark
    HOLD = 4  # white space that is kept unless nothing but white space follows (pipeline C)


class Cell(IntEnum):
    """Scratch state, int64 each: how one text's encoding stands between two steps."""

    COUNT = 0  # ids written so far
    LENGTH = 1  # bytes in the word buffer
    PENDING = 2
    STRIP = 3  # where trailing white space begins in the buffer, -1 = it does not end so
    LAST_MARK = 4  # where the last word begins in the buffer
    CONTINUED = 5  # the buffer starts inside a word whose beginning is already emitted
    CARRY = 6  # float64: score at the buffer's start
    LAST_UNK = 7  # the word's last emitted id is UNK
    CAPACITY = 8  # bytes the word buffer may hold
    SOFT = 9  # length at which complete words are emitted
    LONG = 10  # length at which an incomplete word is worked off


NOT_PENDING, SPACE_PENDING, START_PENDING = 0, 1, 2

CACHE_SLOTS = 4096
CACHE_SLOT_BYTES = 64
CACHED_IDS = 9
RING = 256
CACHE_AT = 256
RING_AT = CACHE_AT + CACHE_SLOTS * CACHE_SLOT_BYTES
BUFFER_AT = RING_AT + RING * 8
PADDING = 64

MAX_KEY_BYTES = 23
MAX_PIECE_BYTES = 127
UNK_NODE = (1 << 25) - 1
DRAIN_BYTES = 512
LONG_BYTES = 4096


def scratch_bytes(capacity: int) -> int:
    """Size of a scratch block whose word buffer holds `capacity` bytes."""
    return BUFFER_AT + (capacity + PADDING) * 5


class Status(IntEnum):
    """Why the kernel stopped."""

    DONE = 0
    FULL = 1  # no room for more ids
    CUT = 2  # the text goes on behind `end`, and what was read does not fill the room
    GROW = 3  # one word needs a larger scratch
