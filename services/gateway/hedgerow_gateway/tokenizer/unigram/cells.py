"""Byte offsets of the int64 fields the scratch starts with: how far one text's encoding stands."""

from __future__ import annotations

COUNT = 0  # ids written so far
LENGTH = 8  # bytes in the word buffer
PENDING = 16  # NOT_PENDING, SPACE_PENDING or START_PENDING
STRIP = 24  # where trailing white space begins in the buffer, -1 = it does not end so
LAST_MARK = 32  # where the last word begins in the buffer
CONTINUED = 40  # the buffer starts inside a word whose beginning is already emitted
CARRY = 48  # float64: score at the buffer's start
LAST_UNK = 56  # the word's last emitted id is UNK
CAPACITY = 64  # bytes the word buffer may hold
SOFT = 72  # length at which complete words are emitted
LONG = 80  # length at which an incomplete word is worked off
OUT = 88  # address of the ids
ROOM = 96  # ids that fit there
