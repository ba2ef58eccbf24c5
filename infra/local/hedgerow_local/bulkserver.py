"""Questions about a job to whichever gateway answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus
from hedgerow_shared.errors import HedgerowError, NoWorkerError, StartupError

_PATIENCE_S = 30.0
_AGAIN = (429, 503, 504)

Report = Callable[[Mapping[str, Any]], None]
"""Gets the status of a job, or what is waited for, now and then."""


class Server:
    """Questions to a gateway, asked again while the system is full or away."""

    def __init__(self, bus: Bus, report: Report) -> None:
        self._bus, self.report = bus, report

    async def status(self, job: str) -> dict[str, Any] | None:
        return await self.ask(subjects.job("status", job), {}, missing_ok=True)

    async def is_heard(self, subject: str) -> bool:
        """False when nobody listens there."""
        try:
            await self._bus.request(subject, b"{}", timeout_s=_PATIENCE_S)
        except NoWorkerError:
            return False
        except HedgerowError:
            pass
        return True

    async def ask(
        self,
        subject: str,
        body: Mapping[str, Any],
        *,
        missing_ok: bool = False,
        explain: Callable[[str], str] = str,
    ) -> dict[str, Any] | None:
        """The answer. missing_ok: None for a 404; explain: makes a refusal fit for a person."""
        data, delay_s = json.dumps(body).encode(), 0.1
        while True:
            try:
                reply = await self._bus.request(subject, data, timeout_s=_PATIENCE_S)
            except HedgerowError as error:
                if not error.retryable:
                    raise StartupError(f"{subject}: {error.message}") from None
                status, text = error.status, error.message
                if isinstance(error, NoWorkerError):
                    text = f"no gateway: {text}"
            else:
                code = reply.headers.get(subjects.HEADER_ERROR_CODE)
                if code is None:
                    return json.loads(reply.data)
                status, text = int(code), reply.headers.get(subjects.HEADER_ERROR, "")
            if status == 404 and missing_ok:
                return None
            if status not in _AGAIN:
                raise StartupError(explain(f"refused ({status}): {text}"))
            self.report({"state": f"waiting ({text})"})
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, 5.0)
