"""Our grapheme clusters are the library's, seen through charsmaps made for the purpose."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers import normalizers

from hedgerow_gateway.tokenizer.unigram import darts, graphemes
from hedgerow_gateway.tokenizer.unigram.graphemes import Kind


@pytest.fixture(scope="module")
def kinds() -> np.ndarray:
    return graphemes.classify()


def normalize(text: str, keys: set[str], kinds: np.ndarray) -> str:
    """What the library's Precompiled step does when each key becomes "b", from our clusters."""
    step, out, at = graphemes.automaton().step, "", 0
    while at < len(text):
        state, end = kinds[ord(text[at])], at + 1
        while end < len(text) and step[state, kinds[ord(text[end])]] != 0xFF:
            state = step[state, kinds[ord(text[end])]]
            end += 1
        cluster = text[at:end]
        short = len(cluster.encode()) < 6
        if short and any(cluster.startswith(key) for key in keys):
            out += "b"
        else:
            out += "".join("b" if c in keys else c for c in cluster)
        at = end
    return out


@pytest.mark.parametrize("seed", range(3))
def test_clusters_are_the_librarys_for_every_mixture_of_kinds(kinds, seed):
    rng = random.Random(seed)
    members = [np.flatnonzero(kinds == kind)[:400].tolist() for kind in Kind]
    for _ in range(150):
        pool = [chr(rng.choice(rng.choice(members))) for _ in range(rng.randint(2, 7))]
        pool = [c for c in pool if not 0xD800 <= ord(c) < 0xE000]
        keys = set(rng.sample(pool, rng.randint(1, len(pool)))) - {"\0"} if pool else set()
        if not keys:
            continue
        library = normalizers.Precompiled(darts.build(dict.fromkeys(keys, "b")))
        for _ in range(30):
            text = "".join(rng.choice(pool) for _ in range(rng.randint(1, 14)))
            assert normalize(text, keys, kinds) == library.normalize_str(text), ascii(text)


@pytest.mark.parametrize(
    ("point", "kind"),
    [
        (0x61, Kind.OTHER),
        (0x0D, Kind.CR),
        (0x0A, Kind.LF),
        (0x85, Kind.CONTROL),
        (0xAD, Kind.CONTROL),
        (0xE0001, Kind.CONTROL),
        (0x0301, Kind.LINKED_EXTEND),
        (0x200C, Kind.EXTEND),
        (0x200D, Kind.ZWJ),
        (0x0903, Kind.SPACING),
        (0x094D, Kind.LINKER),
        (0x0915, Kind.CONSONANT),
        (0x0600, Kind.PREPEND),
        (0x2122, Kind.PICTURE),
        (0x1F600, Kind.PICTURE),
        (0x1100, Kind.L),
        (0x1161, Kind.V),
        (0x11A8, Kind.T),
        (0xAC00, Kind.LV),
        (0xAC01, Kind.LVT),
    ],
    ids=hex,
)
def test_well_known_code_points_get_their_unicode_kind(kinds, point, kind):
    assert Kind(kinds[point]) is kind


def test_planes_that_are_not_probed_hold_nothing_that_joins():
    points = [
        *range(0x20000, 0x20000 + 0xC0000, 997), *range(0xE1000, 0x110000, 997),
        *range(0x2A6D0, 0x2A700), *range(0xFFFE, 0x110000, 0x10000), 0x10FFFF,
    ]  # fmt: skip
    library = normalizers.Precompiled(darts.build({"a": "b", "\u0300": "b"}))
    for point in points:
        assert library.normalize_str("a" + chr(point)) == "b" + chr(point), hex(point)
        joined = library.normalize_str(chr(point) + "\u0300\u0301")
        assert joined == chr(point) + "b\u0301", hex(point)


def test_a_charsmap_too_short_for_its_array_is_refused():
    for raw in (b"", b"\x00" * 7, b"\x08\x00\x00\x00" + bytes(4), b"\x03\x00\x00\x00" + bytes(8)):
        with pytest.raises(ValueError, match=r"short|array"):
            darts.parse(raw)


def test_single_characters_are_found_where_they_were_put():
    pairs = {"a": "1", "é": "22", "€": "", "😀": "4", "ab": "no single"}
    charsmap = darts.parse(darts.build(pairs))
    values = darts.char_values(charsmap)
    assert set(np.flatnonzero(values >= 0)) == {ord(c) for c in "aé€😀"}
    for char in "aé€😀":
        rest = charsmap.blob[values[ord(char)] :]
        assert rest[: rest.index(0)].decode() == pairs[char]
