"""How far a job is, on stderr: a bar where somebody looks, else a JSON line every ten seconds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

_LINE_EVERY_S = 10.0
_SHOWN = ("job", "state", "submitted", "done", "failed", "waiting", "rows_per_s", "workers")


class Bar:
    """Use as a context; call it with each status."""

    def __init__(self) -> None:
        self._last_s = float("-inf")
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]} rows/s, {task.fields[failed]} failed"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("bulk", total=None, rate="-", failed=0)

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, status: Mapping[str, Any]) -> None:
        if self._bar is not None:
            fields: dict[str, Any] = {"description": str(status["state"])}
            if "submitted" in status:
                fields |= {"total": status["submitted"], "rate": status["rows_per_s"]}
                fields |= {"failed": status["failed"]}
                fields |= {"completed": status["done"] + status["failed"]}
            self._bar.update(self._task, **fields)
        elif time.monotonic() - self._last_s >= _LINE_EVERY_S:
            self._last_s = time.monotonic()
            line = {key: status[key] for key in _SHOWN if key in status}
            sys.stderr.write(json.dumps(line) + "\n")
