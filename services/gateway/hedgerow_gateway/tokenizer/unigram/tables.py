"""Turn a tokenizer.json into the block of tables the compiled code reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import orjson
from tokenizers import Tokenizer

from hedgerow_gateway.tokenizer.unigram import charsmap, darts, graphemes, header
from hedgerow_gateway.tokenizer.unigram.entry import fill_slots, own_splits, prepare_scratch
from hedgerow_gateway.tokenizer.unigram.layout import (
    HEADER_BYTES,
    LAYOUT_VERSION,
    LONG_BYTES,
    MAX_KEY_BYTES,
    MAX_PIECE_BYTES,
    UNK_NODE,
    scratch_bytes,
)
from hedgerow_gateway.tokenizer.unigram.spec import NotSupportedError, UnigramSpec
from hedgerow_gateway.tokenizer.unigram.trie import build_trie

Bytes = npt.NDArray[np.uint8]
_MARK = charsmap.MARK
_UNK_PENALTY = 10.0
# Sums below this are too coarse for `viterbi.CLOSE`.
_FURTHEST = -1e6


def library_scores(library: Tokenizer) -> list[float]:
    """Scores as the library holds them, which is not quite what the file says.

    Its JSON reader is off by one unit in the last place for a quarter of all numbers, and sums
    that should tie are then ordered by that. Writing numbers is exact, so ask for its own text.
    """
    return [entry[1] for entry in orjson.loads(library.to_str())["model"]["vocab"]]


def build(spec: UnigramSpec, scores: Sequence[float]) -> Bytes:
    """All tables in one block, in a few seconds. Raises NotSupportedError."""
    keys = _keys(spec)
    unk_score = min(scores) - _UNK_PENALTY
    if not np.all(np.isfinite(scores)) or unk_score >= 0:
        raise NotSupportedError("model.vocab holds scores that are not log probabilities")
    sections, fields = _text_sections(spec)
    ordered = sorted(keys)
    _nodes(ordered, keys, scores, unk_score, sections, fields)
    bits = max(4, (2 * len(ordered) - 1).bit_length())
    sections[header.SLOTS] = np.zeros(32 << bits, np.uint8)
    fields[header.SLOT_SHIFT], fields[header.SLOT_MASK] = 64 - bits, (1 << bits) - 1
    fields[header.UNK_ID] = spec.unk_id
    fields[header.MAX_PIECE_BYTES] = max(len(key) for key in ordered)
    block = _pack(sections, fields, unk_score)
    _fill(block, ordered, keys)
    return block


def _keys(spec: UnigramSpec) -> dict[bytes, int]:
    """The pieces that text can match, the mark as one byte, with their ids.

    A raw space or a mark inside a piece never matches: words start at marks and hold none.
    """
    keys: dict[bytes, int] = {}
    for found, piece in enumerate(spec.pieces):
        if piece and found not in spec.control_ids and " " not in piece and _MARK not in piece[1:]:
            keys[piece.replace(_MARK, " ").encode()] = found  # of equal pieces the last counts
    if not keys:
        raise NotSupportedError("model.vocab holds no piece that text could match")
    longest = max(keys, key=len)
    if len(longest) > MAX_PIECE_BYTES:
        raise NotSupportedError(f"model.vocab holds a piece of {len(longest)} bytes")
    return keys


def _text_sections(spec: UnigramSpec) -> tuple[dict[int, npt.NDArray[np.generic]], dict[int, int]]:
    try:
        parsed = darts.parse(spec.charsmap)
    except ValueError as error:
        raise NotSupportedError(f"normalizer.precompiled_charsmap: {error}") from None
    values = darts.char_values(parsed)
    blob = charsmap.recode(parsed.blob, spec.pipeline)
    entries = charsmap.properties(values, blob, graphemes.classify(), spec.pipeline)
    pages, props = charsmap.paged(entries)
    step = np.full((graphemes.automaton().step.shape[0], 32), 0xFF, np.uint8)
    step[:, : graphemes.KINDS] = graphemes.automaton().step
    sections: dict[int, npt.NDArray[np.generic]] = {
        header.PAGES: pages,
        header.PROPS: props,
        header.STEP: step,
        header.UNITS: parsed.units,
        header.BLOB: np.frombuffer(blob, np.uint8),
    }
    fields = {
        header.NUM_UNITS: parsed.units.shape[0],
        header.PIPELINE: int(spec.pipeline),
        header.PLAIN_ASCII: int(charsmap.plain_ascii(entries)),
        header.MAX_GROWTH: charsmap.longest_replacement(values, parsed.units, blob) + 64,
    }
    return sections, fields


def _nodes(
    ordered: list[bytes],
    keys: dict[bytes, int],
    scores: Sequence[float],
    unk_score: float,
    sections: dict[int, npt.NDArray[np.generic]],
    fields: dict[int, int],
) -> None:
    trie = build_trie(ordered)
    size = trie.base.shape[0]
    if size >= UNK_NODE:
        raise NotSupportedError(f"model.vocab needs {size} trie nodes")
    ids = np.array([keys[key] for key in ordered], np.uint32)
    ends = trie.leaf >= 0
    nodes = np.zeros(size, np.dtype([("base", "<u4"), ("parent", "<u4"), ("score", "<f8")]))
    nodes["base"], nodes["parent"], nodes["score"] = trie.base, trie.parent, -np.inf
    nodes["score"][ends] = np.array(scores)[ids[trie.leaf[ends]]]
    of_node = np.zeros(size, np.uint32)
    of_node[ends] = ids[trie.leaf[ends]]
    sections[header.NODES], sections[header.IDS] = nodes, of_node
    sections[header.JOINS] = _joins(ordered, uncut=unk_score * LONG_BYTES < _FURTHEST)
    fields[header.ROOT_BASE] = int(trie.base[0])


def _joins(ordered: list[bytes], *, uncut: bool) -> npt.NDArray[np.uint32]:
    """uint32 [129, 5], see `header.JOINS`. Multi-byte characters are never cut, with `uncut`
    nothing is."""
    text = np.minimum(np.frombuffer(b"".join(ordered), np.uint8), 128).astype(np.int64)
    inside = np.ones(text.shape[0], np.bool_)
    inside[np.cumsum([len(key) for key in ordered]) - 1] = False
    seen = np.full((129, 160), uncut, np.bool_)
    at = np.flatnonzero(inside)
    seen[text[at], text[at + 1]] = True
    seen[128, 128] = True
    return np.packbits(seen, axis=1, bitorder="little").view("<u4")


def _pack(
    sections: dict[int, npt.NDArray[np.generic]], fields: dict[int, int], unk_score: float
) -> Bytes:
    places: dict[int, int] = {}
    end = HEADER_BYTES
    for field, values in sections.items():
        places[field] = end
        end = (end + values.nbytes + 63) // 64 * 64
    block = np.zeros(end + 64, np.uint8)
    for field, values in sections.items():
        raw = np.frombuffer(values.tobytes(), np.uint8)
        block[places[field] : places[field] + raw.shape[0]] = raw
    struct.pack_into("<q", block.data, header.VERSION, LAYOUT_VERSION)
    for field, number in {**places, **fields}.items():
        struct.pack_into("<q", block.data, field, number)
    struct.pack_into("<d", block.data, header.UNK_SCORE, unk_score)
    return block


def _fill(block: Bytes, ordered: list[bytes], keys: dict[bytes, int]) -> None:
    """Enter every piece that is its own best split into SLOTS."""
    scratch = new_scratch(1024)
    bounds = np.zeros(len(ordered) + 1, np.int64)
    np.cumsum([len(key) for key in ordered], out=bounds[1:])
    text = np.frombuffer(b"".join(ordered) + bytes(32), np.uint8)
    own = own_splits(block, scratch, text, bounds)
    chosen: list[bytes] = []
    first: list[int] = []
    ids: list[int] = []
    for key, verdict in zip(ordered, own.tolist(), strict=True):
        marked = key.startswith(b" ")
        rest = key[1:] if marked else key
        if len(rest) <= MAX_KEY_BYTES and verdict >= (1 if marked else 2):
            chosen.append(rest)
            first.append(int(marked))
            ids.append(keys[key])
    bounds = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum([len(key) for key in chosen], out=bounds[1:])
    text = np.frombuffer(b"".join(chosen) + bytes(32), np.uint8)
    start, shift, mask = (
        struct.unpack_from("<q", block.data, field)[0]
        for field in (header.SLOTS, header.SLOT_SHIFT, header.SLOT_MASK)
    )
    fill_slots(
        block[start:],
        shift,
        mask,
        text,
        bounds,
        np.array(first, np.int64),
        np.array(ids, np.uint32),
    )


def new_scratch(capacity: int) -> Bytes:
    """A scratch block whose word buffer holds `capacity` bytes."""
    scratch = np.zeros(scratch_bytes(capacity), np.uint8)
    prepare_scratch(scratch, capacity)
    return scratch
