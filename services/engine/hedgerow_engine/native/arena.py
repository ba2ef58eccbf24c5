"""The buffers of one pass, and the FRAME words that point into them.

An executor keeps a few: a query that overtakes a bulk pass between two layers has its own.
"""

from __future__ import annotations

from hedgerow_engine.native.attention import scratch_bytes
from hedgerow_engine.native.geometry import Geometry
from hedgerow_engine.native.memory import Memory, address, padded
from hedgerow_engine.native.program import local_bytes
from hedgerow_engine.native.rungs import Rung
from hedgerow_engine.native.words import FRAME

_STEP_TOKENS = 128


class Arena:
    """Room for passes of up to `max_tokens` tokens whose longest sequence is `max_length`."""

    def __init__(
        self, g: Geometry, rung: Rung, *, threads: int, max_tokens: int, max_length: int
    ) -> None:
        self.max_tokens = -(-max_tokens // _STEP_TOKENS) * _STEP_TOKENS
        self.max_length = -(-max_length // _STEP_TOKENS) * _STEP_TOKENS
        self.frame = FRAME.new()[0]
        self.frame_address = address(self.frame)
        scratch = padded(scratch_bytes(rung, g.head_dim, self.max_length))
        sizes = {
            "x": self.max_tokens * g.hidden * 4,
            "acts": self.max_tokens * g.hidden * rung.act_bytes,
            "qkv": self.max_tokens * g.qkv_width * rung.act_bytes,
            "context": self.max_tokens * g.context_width * rung.act_bytes,
            "places": self.max_tokens * 4,
            "chosen": self.max_tokens * g.hidden * 4 if g.narrow else 0,
            "local": threads * local_bytes(g, rung),
            "scratch": threads * scratch,
        }
        self._memory = Memory(sum(padded(size) for size in sizes.values()))
        pieces = {name: address(self._memory.take(size)) for name, size in sizes.items()}
        FRAME.put(self.frame, scratch_step=scratch, **pieces)

    @property
    def num_bytes(self) -> int:
        return self._memory.num_bytes

    def holds(self, num_tokens: int, length: int) -> bool:
        return num_tokens <= self.max_tokens and length <= self.max_length


class ArenaPool:
    """Arenas not in use, and how to get a bigger one. One thread uses it at a time."""

    def __init__(self, g: Geometry, rung: Rung, *, threads: int, keep: int = 2) -> None:
        self._geometry, self._rung, self._threads, self._keep = g, rung, threads, keep
        self._free: list[Arena] = []

    @property
    def num_bytes(self) -> int:
        return sum(arena.num_bytes for arena in self._free)

    def take(self, num_tokens: int, length: int) -> Arena:
        """An arena with that much room; a smaller free one is given up for a bigger one."""
        for arena in self._free:
            if arena.holds(num_tokens, length):
                self._free.remove(arena)
                return arena
        if self._free:
            smaller = self._free.pop()
            num_tokens = max(num_tokens, smaller.max_tokens)
            length = max(length, smaller.max_length)
        return Arena(
            self._geometry,
            self._rung,
            threads=self._threads,
            max_tokens=num_tokens,
            max_length=length,
        )

    def give(self, arena: Arena) -> None:
        if len(self._free) < self._keep:
            self._free.append(arena)
