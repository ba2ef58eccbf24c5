"""Bulk messages that this worker can make nothing of: handed on, or kept for people to look at."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from hedgerow_scheduler.bulk_store import Item, Store
from hedgerow_shared import subjects
from hedgerow_shared.bus.jetstream_pull import Delivery
from hedgerow_shared.errors import NoWorkerError

_HAND_ON_S = 10.0

_log = logging.getLogger("hedgerow.bulk")


class Misfits:
    """What becomes of them.

    version_wait_s: how long a chunk for a version of the model that this worker does not serve is
        handed on to others, before its rows get an error
    spawn: runs a coroutine beside the lane
    """

    def __init__(
        self,
        store: Store,
        counts: Counter[str],
        *,
        version_wait_s: float,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._store, self._counts, self._spawn = store, counts, spawn
        self._wait_s, self._hand_on_s = version_wait_s, min(_HAND_ON_S, version_wait_s / 4)
        self._buried: set[int] = set()

    def bury(self, delivery: Delivery, reason: str) -> None:
        """A message that is no chunk: no worker will ever make anything of it."""
        self._counts["bulk_unreadable"] += 1
        if delivery.seq not in self._buried:  # delivered again while it is being stored
            self._buried.add(delivery.seq)
            self._spawn(self._bury(delivery, reason))

    def hand_on(self, item: Item) -> NoWorkerError | None:
        """Leave a chunk for another version of the model to others. Returns the error of its
        rows once that has been tried for long enough."""
        delivery, version = item.delivery, item.chunk.fingerprint
        if delivery.attempt * self._hand_on_s < self._wait_s:
            self._counts["bulk_other_version"] += 1
            _log.warning("bulk: %s: left for others: version %s", delivery.subject, version)
            delivery.nak(self._hand_on_s)
            return None
        return NoWorkerError(
            f"no worker has served version {version} of {item.chunk.model!r} for "
            f"{self._wait_s:g} s: submit these rows again, in a new job"
        )

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        _log.error("bulk: %s message %d: %s", delivery.subject, delivery.seq, reason)
        _, _, model, job = delivery.subject.split(".", 3)
        subject = subjects.dead(model, job, f"message-{delivery.seq}")
        await self._store.dead(subject, delivery.data, reason)
        delivery.ack()
        self._buried.discard(delivery.seq)
