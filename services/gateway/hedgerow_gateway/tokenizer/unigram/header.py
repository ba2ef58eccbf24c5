"""Byte offsets of the int64 fields the tables start with; sections are byte offsets themselves.

PAGES     uint32 [0x110000 >> 7]: which page of PROPS a code point's 128 neighbours share
PROPS     uint32 [pages, 128]: grapheme kind (5 bits), Action (3 bits), offset into BLOB (24)
STEP      uint8 [states, 32]: the grapheme automaton; 0xFF = boundary
UNITS     uint32 [NUM_UNITS]: the charsmap's own double array, for keys of several characters
BLOB      its replacements, NUL-terminated, recoded (see `charsmap.recode`)
JOINS     uint32 [129, 5]: bit b of row a is set when some piece holds byte a before byte b
          (128 stands for every byte above ASCII)
NODES     16 bytes each: uint32 base, uint32 parent, float64 score (-inf: no piece ends here)
IDS       uint32 per node: the piece that ends there
SLOTS     32 bytes each: 24 bytes of key, uint32 id: pieces that are their own best split
"""

from __future__ import annotations

VERSION = 0
PAGES = 8
PROPS = 16
STEP = 24
UNITS = 32
NUM_UNITS = 40
BLOB = 48
JOINS = 56
NODES = 64
IDS = 72
SLOTS = 80
SLOT_SHIFT = 88
SLOT_MASK = 96
ROOT_BASE = 104
UNK_ID = 112
UNK_SCORE = 120  # float64
MAX_PIECE_BYTES = 128
MAX_GROWTH = 136  # most bytes one character or cluster can add to the word buffer
PIPELINE = 144
PLAIN_ASCII = 152  # 1: "!" to "~" are copied as they are
