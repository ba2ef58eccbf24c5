"""The parent's side of an engine's process: start it, ask it, end it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT


class ContenderError(Exception):
    """The engine's process could not load or run what was asked; the text is its reason."""


@dataclass(slots=True)
class Contender:
    """One engine of the comparison.

    name: what the rows call it; ask: how its process opens it; python: its environment
    facts: dtype and versions, told by the process once it is open
    """

    name: str
    ask: Mapping[str, Any]
    python: Path
    facts: Mapping[str, str] = field(default_factory=dict)
    _child: subprocess.Popen[str] | None = None

    def open(self) -> None:
        """Start the process and wait until its model is loaded. Raises ContenderError."""
        self.start()
        self.facts = self.receive()["facts"]

    def start(self) -> None:
        """Start the process; its first answer, once the model is loaded, holds the facts."""
        command = [str(self.python), "-m", "benchmarks.engine.child", json.dumps(self.ask)]
        self._child = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def call(self, **ask: Any) -> dict[str, Any]:
        """Ask and wait for the answer. Raises ContenderError with the engine's own reason."""
        self.send(**ask)
        return self.receive()

    def send(self, **ask: Any) -> None:
        assert self._child is not None and self._child.stdin is not None
        self._child.stdin.write(json.dumps(ask) + "\n")
        self._child.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self._child is not None and self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise ContenderError(f"{self.name}: its process ended (status {self._child.wait()})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process; safe to call twice."""
        if self._child is None:
            return
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._child = None
