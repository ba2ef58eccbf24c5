"""One tile of query rows against one block of keys: scores, weights, weighted values.

    rows of q        [8 rows][head_dim]                 spread group by group
    packed keys      [vectors][head_dim / group][lanes] streamed
    score strip      [8][KEY_BLOCK] float32             in L1
    weight strip     [8][KEY_BLOCK] acts                in L1, spread group by group
    packed values    [chunks][keys / group][2][lanes]   streamed
    out              [8][head_dim] acts

Two forms: one block of keys is all there is, or ("online") one of several, with a state per row
carried between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow_engine.native.approx import exp2
from hedgerow_engine.native.ir import Bool, Function, Int, Kernel, Ptr, Real, Unit
from hedgerow_engine.native.rungs import GROUP_BYTES, Rung
from hedgerow_engine.native.values import I32, ir

KEY_BLOCK = 512
# Lower than any score, but 2 ** (it - it) is still 1: rows that see nothing of a block stay finite.
_HIDDEN = -1e30
# Strip rows are a cache line longer than KEY_BLOCK, so that they do not share cache sets.
_PAD_BYTES = 64
_UNROLLED_GROUPS = 32


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """query_heads: query heads per key head. windowed: rows see only keys from `back` before
    them to `ahead` after them (causal: ahead 0); else every row sees the whole sequence.
    biased: scores begin at a number that depends on the distance of key and row, read from
    bias[key - row]; the pointer is where distance 0 lies"""

    head_dim: int
    query_heads: int = 1
    windowed: bool = False
    biased: bool = False


def strips_bytes(rung: Rung) -> int:
    """Room for the score strip and the weight strip of a tile."""
    return rung.rows * (KEY_BLOCK * (4 + rung.act_bytes) + 2 * _PAD_BYTES)


def state_bytes(rung: Rung, head_dim: int) -> int:
    """Per row: the largest score, the sum of weights, head_dim weighted values; float32."""
    return rung.rows * (head_dim + 2) * 4


def attend_tile(unit: Unit, spec: AttentionSpec, *, online: bool) -> Function:
    """Pointers q, packed keys, packed values, out, bias, strips, state; integers of `attention`,
    then the tile's first row (counted from q) and the block's first key."""
    name = "attend_online" if online else "attend"
    return unit.once(name, lambda: _write(unit, name, spec, online))


def _write(unit: Unit, name: str, spec: AttentionSpec, online: bool) -> Function:
    k = unit.kernel(name, ptrs=7, ints=9)
    tile = _Tile(k, spec)
    if not online:
        largest = [k.splat(k.largest(m)) for m in tile.scores()]
        sums = [k.sum(s) for s in tile.weights(largest)]
        tile.values([k.real(0.0)] * k.rung.rows, sums, None)
        return k.done()
    with k.when(tile.first < tile.last):
        _online_turn(k, tile)
    return k.done()


def _online_turn(k: Kernel, tile: _Tile) -> None:
    """Merge this block into the state; the block that holds a tile's last key writes `out`."""
    state, rows = tile.state, k.rung.rows
    starts = tile.seen_from >= tile.key
    before = [
        k.choose(starts, k.scalar(_HIDDEN), k.load_scalar(state + 4 * i)) for i in range(rows)
    ]
    largest = [k.largest(m).at_least(m0) for m, m0 in zip(tile.scores(), before, strict=True)]
    shrink = [exp2(k, k.splat(m0 - m)) for m, m0 in zip(largest, before, strict=True)]
    sums: list[Real] = []
    for i, weights in enumerate(tile.weights([k.splat(m) for m in largest])):
        old = k.choose(starts, k.scalar(0.0), k.load_scalar(state + 4 * (rows + i)))
        kept = k.b.extract_element(shrink[i].v, I32(0))
        sums.append(k.fma(old, Real(k.b, kept), k.sum(weights)))
        k.store_scalar(largest[i], state + 4 * i)
        k.store_scalar(sums[i], state + 4 * (rows + i))
    tile.values(shrink, sums, starts)


class _Tile:
    """The tile being written, and what its rows may see.

    first, last: keys of this block that any row sees; `last` is past the end
    seen_from, seen_to: the same of all blocks
    """

    def __init__(self, k: Kernel, spec: AttentionSpec) -> None:
        self.k, self.spec, self.rung = k, spec, k.rung
        self.q, self.packed_keys, self.packed_values, self.out, bias = k.ptrs[:5]
        self.strips, self.state = k.ptrs[5:]
        length, count, skipped, row_step, self.out_step, back, ahead, row, self.key = k.ints
        self.rows = [(row + i).at_most(count - 1) for i in range(self.rung.rows)]
        places = [r + skipped for r in self.rows]
        self.q_rows = [self.q + r * row_step for r in self.rows]
        self.bias_rows = [bias - place * 4 for place in places] if spec.biased else []
        if spec.windowed:
            self.from_row = [(place - back).at_least(0) for place in places]
            self.to_row = [(place + ahead + 1).at_most(length) for place in places]
        else:
            self.from_row, self.to_row = [k.int(0)] * self.rung.rows, [length] * self.rung.rows
        end = self.key + KEY_BLOCK
        self.seen_from, self.seen_to = self.from_row[0], self.to_row[-1]
        self.first, self.last = self.seen_from.at_least(self.key), self.seen_to.at_most(end)
        lanes = self.rung.lanes
        self.begin, self.end = self.first // lanes, (self.last + (lanes - 1)) // lanes
        # Vectors of keys that every row sees completely need no mask.
        full = (self.from_row[-1].at_least(self.key) + (lanes - 1)) // lanes
        self.full_begin = full.at_least(self.begin).at_most(self.end)
        self.full_end = (self.to_row[0].at_most(end) // lanes).at_least(self.full_begin)

    def scores(self) -> list[Real]:
        """Fill the score strip; returns, for each row, a vector whose largest lane is the
        largest score."""
        k = self.k
        largest = [k.real(_HIDDEN)] * self.rung.rows
        if self.spec.windowed:
            with k.loop(self.begin, self.full_begin, carry=largest) as loop:
                loop.feed(self._score_step(loop.index, 1, loop.values, masked=True))
            largest = loop.values
        pairs = (self.full_end - self.full_begin).down_to(2) + self.full_begin
        with k.loop(self.full_begin, pairs, 2, carry=largest) as loop:
            loop.feed(self._score_step(loop.index, 2, loop.values, masked=False))
        with k.loop(pairs, self.end, carry=loop.values) as rest:
            rest.feed(self._score_step(rest.index, 1, rest.values, masked=True))
        return rest.values

    def _score_step(
        self, vector: Int, count: int, largest: list[Real], *, masked: bool
    ) -> list[Real]:
        """Scores of all rows against `count` vectors of keys."""
        k, rung = self.k, self.rung
        products = self._products(vector, count)
        highest = list(largest)
        for i in range(rung.rows):
            for n in range(count):
                score = products[i * count + n]
                if masked:
                    score = k.choose(self._visible(i, vector), score, k.real(_HIDDEN))
                k.store(score, self._score_at(i, vector + n))
                highest[i] = score.at_least(highest[i])
        return highest

    def _products(self, vector: Int, count: int) -> list[Real]:
        k, rung = self.k, self.rung
        groups = self.spec.head_dim // rung.group
        block_bytes = groups * rung.vector_bytes
        block = self.packed_keys + vector * block_bytes
        unrolled = max(u for u in range(1, _UNROLLED_GROUPS + 1) if groups % u == 0)
        start = [k.real(0.0)] * (rung.rows * count)
        if self.spec.biased:
            places = [(vector + n) * rung.vector_bytes for n in range(count)]
            start = [k.load(row + place) for row in self.bias_rows for place in places]
        with k.loop(0, groups, unrolled, carry=start) as loop:
            sums = list(loop.values)
            for u in range(unrolled):
                at = block + loop.index * rung.vector_bytes + u * rung.vector_bytes
                keys = [k.load_operand(at + n * block_bytes) for n in range(count)]
                for i, q_row in enumerate(self.q_rows):
                    spread = k.spread_group(q_row + loop.index * GROUP_BYTES + u * GROUP_BYTES)
                    for n, key in enumerate(keys):
                        sums[i * count + n] = k.dot(sums[i * count + n], spread, key)
            loop.feed(sums)
        return loop.values

    def _visible(self, i: int, vector: Int) -> Bool:
        """Which keys of a vector row `i` may see."""
        k, lanes = self.k, self.rung.lanes
        numbers = ir.Constant(k.int_vector, [I32(lane) for lane in range(lanes)])

        def limit(bound: Int) -> Ptr | object:
            return k.splat_raw(k.b.trunc((bound - vector * lanes).v, I32), k.int_vector)

        inside = Bool(k.b, k.b.icmp_signed("<", numbers, limit(self.to_row[i])))
        if self.spec.windowed:
            from_here = k.b.icmp_signed(">=", numbers, limit(self.from_row[i]))
            inside = inside & Bool(k.b, from_here)
        return inside

    def weights(self, largest: list[Real]) -> list[Real]:
        """Fill the weight strip; returns, for each row, a vector of partial sums."""
        k = self.k
        pairs = (self.end - self.begin).down_to(2) + self.begin
        with k.loop(self.begin, pairs, 2, carry=[k.real(0.0)] * self.rung.rows) as loop:
            loop.feed(self._weight_step(loop.index, 2, loop.values, largest))
        with k.loop(pairs, self.end, carry=loop.values) as rest:
            rest.feed(self._weight_step(rest.index, 1, rest.values, largest))
        return rest.values

    def _weight_step(
        self, vector: Int, count: int, sums: list[Real], largest: list[Real]
    ) -> list[Real]:
        """Weights of all rows for `count` vectors of keys. A pair is rounded together, and the
        multiplier adds up what was rounded, so that weights sum to what they are divided by."""
        k, new_sums = self.k, list(sums)
        for i, top in enumerate(largest):
            weights = [exp2(k, k.load(self._score_at(i, vector + n)) - top) for n in range(count)]
            place = self._weight_at(i, vector * self.rung.lanes)
            if count == 2 and self.rung.group == 2:
                pair = k.narrow(weights)
                k.store_operand(pair, place)
                new_sums[i] = k.dot(new_sums[i], pair, k.ones())
                continue
            for n, weight in enumerate(weights):
                k.store_act(weight, place + n * self.rung.lanes * self.rung.act_bytes)
                new_sums[i] = new_sums[i] + weight
        return new_sums

    def values(self, shrink: list[Real], sums: list[Real], starts: Bool | None) -> None:
        """Weighted values, chunk by chunk of two vectors of the head. `starts`: None = the only
        block; else whether the state is still empty."""
        k, rung = self.k, self.rung
        inverse = [k.splat(k.scalar(1.0) / s) for s in sums]
        padded = (k.ints[0]).up_to(rung.lanes)
        for chunk in range(self.spec.head_dim // (2 * rung.lanes)):
            place = self.packed_values + padded * (chunk * 2 * rung.lanes * rung.act_bytes)
            sums_here = self._weighted(place, self._start(chunk, shrink, starts))
            if starts is None:
                self._write_out(chunk, sums_here, inverse)
                continue
            ends = self.seen_to <= self.key + KEY_BLOCK
            with k.when(ends):
                self._write_out(chunk, sums_here, inverse)
            with k.when(~ends):
                for i in range(rung.rows):
                    for v in range(2):
                        k.store(sums_here[2 * i + v], self._state_at(i, chunk, v))

    def _start(self, chunk: int, shrink: list[Real], starts: Bool | None) -> list[Real]:
        k, zero = self.k, self.k.real(0.0)
        if starts is None:
            return [zero] * (2 * self.rung.rows)
        return [
            k.choose(starts, zero, k.load(self._state_at(i, chunk, v)) * shrink[i])
            for i in range(self.rung.rows)
            for v in range(2)
        ]

    def _weighted(self, values: Ptr, start: list[Real]) -> list[Real]:
        k, rung = self.k, self.rung
        step = 2 * rung.group
        with k.loop(self.begin * rung.lanes, self.end * rung.lanes, step, carry=start) as loop:
            sums = list(loop.values)
            for u in range(2):
                at = values + loop.index * (2 * rung.lanes * rung.act_bytes)
                at = at + u * 2 * rung.vector_bytes
                pair = [k.load_operand(at + v * rung.vector_bytes) for v in range(2)]
                for i in range(rung.rows):
                    spread = k.spread_group(self._weight_at(i, loop.index) + u * GROUP_BYTES)
                    for v, value in enumerate(pair):
                        sums[2 * i + v] = k.dot(sums[2 * i + v], spread, value)
            loop.feed(sums)
        return loop.values

    def _write_out(self, chunk: int, sums: list[Real], inverse: list[Real]) -> None:
        width = self.rung.lanes * self.rung.act_bytes
        for i, row in enumerate(self.rows):
            for v in range(2):
                place = self.out + row * self.out_step + (2 * chunk + v) * width
                self.k.store_act(sums[2 * i + v] * inverse[i], place)

    def _score_at(self, i: int, vector: Int) -> Ptr:
        offset = vector * self.rung.vector_bytes - self.key * 4
        return self.strips + i * (KEY_BLOCK * 4 + _PAD_BYTES) + offset

    def _weight_at(self, i: int, key: Int) -> Ptr:
        base = self.rung.rows * (KEY_BLOCK * 4 + _PAD_BYTES)
        row = i * (KEY_BLOCK * self.rung.act_bytes + _PAD_BYTES)
        return self.strips + (base + row) + (key - self.key) * self.rung.act_bytes

    def _state_at(self, i: int, chunk: int, v: int) -> Ptr:
        offset = 2 * self.rung.rows * 4 + i * self.spec.head_dim * 4
        return self.state + (offset + (2 * chunk + v) * self.rung.vector_bytes)
