"""All chunks of one request at work, but never more of them than the fleet should hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from hedgerow_gateway.giveway import breathe
from hedgerow_shared.wire import ChunkReply

_LAUNCHES_PER_TURN = 2


class Gather:
    """Delivers spans with at most `window_tokens` of them in flight (one always may be).

    keep_going: replies may carry errors; otherwise the first error ends everything at once
    """

    def __init__(
        self,
        deliver: Callable[[tuple[int, int]], Awaitable[ChunkReply]],
        window_tokens: int,
        *,
        keep_going: bool,
    ) -> None:
        self._deliver, self._window_tokens = deliver, window_tokens
        self._keep_going = keep_going
        self._running: set[asyncio.Task[ChunkReply]] = set()
        self._tokens = 0
        self._failed: BaseException | None = None
        self._wake = asyncio.Event()

    async def run(self, spans: Sequence[tuple[int, int]], sizes: Sequence[int]) -> list[ChunkReply]:
        """Return the replies in order of the spans. sizes: tokens of each span."""
        tasks: list[asyncio.Task[ChunkReply]] = []
        try:
            for span, size in zip(spans, sizes, strict=True):
                await self._until(
                    lambda size=size: (
                        self._tokens + size <= self._window_tokens or not self._running
                    )
                )
                tasks.append(self._launch(span, size))
                if len(tasks) % _LAUNCHES_PER_TURN == 0:
                    # Encoding hundreds of chunks in one go would keep queries waiting.
                    await breathe()
            await self._until(lambda: not self._running)
            return [task.result() for task in tasks]
        finally:
            for task in self._running:
                task.cancel()

    def _launch(self, span: tuple[int, int], size: int) -> asyncio.Task[ChunkReply]:
        async def deliver() -> ChunkReply:
            return await self._deliver(span)

        task = asyncio.create_task(deliver())
        self._tokens += size
        self._running.add(task)
        task.add_done_callback(lambda done: self._settle(done, size))
        return task

    def _settle(self, task: asyncio.Task[ChunkReply], size: int) -> None:
        self._running.discard(task)
        self._tokens -= size
        if not task.cancelled():
            error = task.exception() or task.result().error
            if error is not None and not (self._keep_going and task.exception() is None):
                self._failed = self._failed or error
        self._wake.set()

    async def _until(self, free: Callable[[], bool]) -> None:
        """Wait for `free()`; raise what failed meanwhile."""
        while self._failed is None and not free():
            self._wake.clear()
            await self._wake.wait()
        if self._failed is not None:
            raise self._failed
