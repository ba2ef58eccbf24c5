"""Each model runs once at the sizes it will meet first, so that no caller pays for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from hedgerow_scheduler.ports import Engine
from hedgerow_shared.errors import HedgerowError, StartupError
from hedgerow_shared.ragged import Lane, RaggedBatch

_log = logging.getLogger("hedgerow.worker")


def warm_up(engines: Mapping[str, Engine], budget_tokens: int) -> None:
    """Blocks until all are warm. Raises StartupError naming the model that fails."""
    for alias, engine in engines.items():
        started_s = time.monotonic()
        for num_tokens in (8, 32, min(budget_tokens, engine.max_seq_len)):
            length = min(num_tokens, engine.max_seq_len)
            batch = RaggedBatch.of([[i % 4 for i in range(length)]])
            try:
                _run_twice(engine, batch)
            except HedgerowError as error:
                raise StartupError(f"model {alias} fails on {length} tokens: {error}") from None
        _log.info("model %s: warm in %.2f s", alias, time.monotonic() - started_s)


def _run_twice(engine: Engine, batch: RaggedBatch) -> None:
    for _ in range(2):
        lazy = engine.step(batch, Lane.QUERY)
        lazy.result()
        lazy.release()
