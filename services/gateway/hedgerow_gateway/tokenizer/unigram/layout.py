"""Where everything lies: one block of tables (read only, shared), one of scratch per thread.

Both are plain uint8 arrays, so that a call from Python passes two pointers instead of twenty,
and the tables can be kept in a file as they are.
Header fields of the tables are in `header`, those of the scratch in `cells`.
"""

from __future__ import annotations

from enum import IntEnum

LAYOUT_VERSION = 1
CODE_POINTS = 0x110000
PAGE_BITS = 7


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


NOT_PENDING, SPACE_PENDING, START_PENDING = 0, 1, 2

CACHE_SLOTS = 8192
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
