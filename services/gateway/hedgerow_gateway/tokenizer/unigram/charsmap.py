"""A tokenizer's charsmap and pipeline as one property per code point."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hedgerow_gateway.tokenizer.unigram import darts
from hedgerow_gateway.tokenizer.unigram.graphemes import Classes
from hedgerow_gateway.tokenizer.unigram.layout import CODE_POINTS, PAGE_BITS, Action, Pipeline
from hedgerow_gateway.tokenizer.unigram.spec import NotSupportedError

MARK = "\u2581"
# Unicode White_Space, which is what the library's WhitespaceSplit and Strip go by.
WHITE_SPACE = (
    *range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
    0x202F, 0x205F, 0x3000,
)  # fmt: skip
_MARK_CODE, _FILLER = b"\x01", b"\x02"


def recode(blob: bytes, pipeline: Pipeline) -> bytes:
    """The replacements with spaces, word marks and separators as single codes.

    Offsets stay valid: a code is followed by fillers up to the length of what it stands for.
    Raises NotSupportedError for replacements the encoder has no code for.
    """
    if _MARK_CODE in blob or _FILLER in blob:
        raise NotSupportedError("normalizer.precompiled_charsmap: a replacement holds U+0001")
    blob = blob.replace(MARK.encode(), _MARK_CODE + _FILLER * 2)
    for point in WHITE_SPACE:
        spelled = chr(point).encode()
        if point == 0x20 or spelled not in blob:
            continue
        if pipeline is Pipeline.C:
            raise NotSupportedError(
                "normalizer.precompiled_charsmap: a replacement holds white space "
                f"(U+{point:04X}) that Strip removes"
            )
        if pipeline is Pipeline.B:
            blob = blob.replace(spelled, b" " + _FILLER * (len(spelled) - 1))
    return blob + b"\0"


def properties(
    values: npt.NDArray[np.int64], blob: bytes, kinds: Classes, pipeline: Pipeline
) -> npt.NDArray[np.uint32]:
    """uint32 [0x110000]: grapheme kind, Action, and where in the recoded blob (`layout.PROPS`).

    values: where each character's replacement starts, -1 = none (`darts.char_values`)
    """
    actions = np.full(CODE_POINTS, int(Action.COPY), np.uint32)
    actions[ord(MARK)] = Action.MARK
    actions[0x20] = Action.SPACE
    if pipeline is not Pipeline.A:
        kept = Action.SPACE if pipeline is Pipeline.B else Action.HOLD
        actions[[point for point in WHITE_SPACE if point != 0x20]] = kept
    mapped = values >= 0
    actions[mapped] = Action.REPLACE
    starts = np.where(mapped, values, 0)
    codes = np.frombuffer(blob, np.uint8)
    if int(starts.max()) >= min(codes.shape[0], 1 << 24):
        raise NotSupportedError("normalizer.precompiled_charsmap: a value lies outside its bytes")
    only_space = mapped & (codes[starts] == 0x20) & (codes[starts + 1] == 0)
    actions[only_space] = Action.SPACE
    entries = starts << 8 | actions.astype(np.int64) << 5 | kinds
    return entries.astype(np.uint32)


def plain_ascii(entries: npt.NDArray[np.uint32]) -> bool:
    """True when "!" to "~" are copied as they are and join nothing."""
    return not np.any(entries[33:127])


def paged(
    entries: npt.NDArray[np.uint32],
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Two-level form: (page of each 128 code points, pages uint32 [n, 128])."""
    rows = entries.reshape(-1, 1 << PAGE_BITS)
    pages, which = np.unique(rows, axis=0, return_inverse=True)
    return which.reshape(-1).astype(np.uint32), pages


def longest_replacement(values: npt.NDArray[np.int64], units: darts.Units, blob: bytes) -> int:
    """Most bytes one replacement can add."""
    values_in_units = units[units >= np.uint32(1 << 31)].astype(np.int64) & ((1 << 31) - 1)
    starts = np.unique(np.concatenate([values[values >= 0], values_in_units]))
    starts = starts[starts < len(blob)]
    ends = np.flatnonzero(np.frombuffer(blob, np.uint8) == 0)
    return int((ends[np.searchsorted(ends, starts)] - starts).max(initial=0))
