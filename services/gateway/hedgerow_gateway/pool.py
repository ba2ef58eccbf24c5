"""Large texts off the event loop: slices on threads, so that a big request blocks no query."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from hedgerow_gateway.giveway import breathe, give_way
from hedgerow_gateway.tokenizer.encoded import Encoded, join

INLINE_CHARS = 2048
SLICE_CHARS = 64 * 1024


class SlicePool:
    """Runs an encode function over slices of a request.

    Up to 2 KB it runs here and now: a thread hop costs more than a query's tokenization.
    Larger requests are cut into slices of about 64 KB; each request keeps at most one slice
    per thread queued, so that requests share the threads evenly.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenize")

    async def encode(
        self, texts: Sequence[str], encode: Callable[[Sequence[str]], Encoded]
    ) -> Encoded:
        """Encode all texts in order. `encode` is called from any thread."""
        if len(texts) == 1 or len(texts) < 64:
            size = sum(map(len, texts))
            if size <= INLINE_CHARS:
                return encode(texts)
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[Encoded]] = []
        parts: list[Encoded] = []
        try:
            for start, stop in slices(texts):
                if len(waiting) >= self._threads:
                    parts.append(await waiting.pop(0))
                job = partial(_encode, encode, texts[start:stop])
                waiting.append(loop.run_in_executor(self._pool, job))
            while waiting:
                parts.append(await waiting.pop(0))
        finally:
            for future in waiting:
                future.cancel()
        joined = join(parts)
        await breathe()
        return joined

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _encode(encode: Callable[[Sequence[str]], Encoded], texts: Sequence[str]) -> Encoded:
    """On a thread of the pool: one slice, then a moment for whoever waits for this core."""
    encoded = encode(texts)
    give_way()
    return encoded


def slices(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(start, stop) of runs of texts of about SLICE_CHARS each; a longer text stands alone."""
    start = size = 0
    for i, text in enumerate(texts):
        if size and size + len(text) > SLICE_CHARS:
            yield start, i
            start, size = i, 0
        size += len(text) + 1
    if start < len(texts):
        yield start, len(texts)
