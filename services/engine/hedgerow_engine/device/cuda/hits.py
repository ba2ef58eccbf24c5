"""Which shapes a worker saw, kept on disk: the next one records the hot ones while it is idle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hedgerow_engine.graphs import Key
from hedgerow_shared.cachefolder import cache_base
from hedgerow_shared.ragged import TASKS

_KEPT = 512


def hits_folder(setting: str | None) -> Path | None:
    """Where counts are kept: what the setting says, else below the user's cache; "" = nowhere."""
    if setting is not None:
        return Path(setting) if setting else None
    return cache_base() / "graphs"


class Hits(NamedTuple):
    """Counts by key, hottest first: each lane has graphs of its own."""

    urgent: Mapping[Key, int]
    bulk: Mapping[Key, int]


class HitFile:
    """Counts of each lane and the measured inflection point. Never an error: a file that cannot
    be read or written costs a slower first hour.

    identity: what shapes depend on: the model, its numbers, the card
    """

    def __init__(self, folder: Path | None, identity: tuple[object, ...]) -> None:
        digest = hashlib.sha256("\n".join(map(str, identity)).encode()).hexdigest()[:24]
        self._file = None if folder is None else folder / f"{digest}.json"

    def load(self) -> tuple[Hits, int | None]:
        """(hits of each lane; inflection point or None)."""
        try:
            content = json.loads(self._file.read_text("utf-8")) if self._file else {}
            hits = Hits(_counts(content.get("hits", [])), _counts(content.get("bulk", [])))
            point = content.get("inflection")
        except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
            return Hits({}, {}), None
        return hits, point if isinstance(point, int) and point > 0 else None

    def save(self, hits: Hits, inflection: int | None) -> None:
        if self._file is None:
            return
        lanes = {"hits": _entries(hits.urgent), "bulk": _entries(hits.bulk)}
        text = json.dumps({"inflection": inflection, **lanes})
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            fresh.write_text(text, "utf-8")
            fresh.replace(self._file)
        except OSError:
            return


def _counts(entries: list[Any]) -> dict[Key, int]:
    hits = {_key(entry): int(entry[3]) for entry in entries}
    return dict(sorted(hits.items(), key=lambda item: -item[1]))


def _entries(hits: Mapping[Key, int]) -> list[list[Any]]:
    hottest = sorted(hits.items(), key=lambda item: -item[1])[:_KEPT]
    return [[k.tokens, k.slots, list(k.heads), count] for k, count in hottest]


def _key(entry: list[Any]) -> Key:
    tokens, slots, heads = entry[:3]
    whole = isinstance(tokens, int) and isinstance(slots, int) and tokens > 0 and slots > 1
    if not whole or not isinstance(heads, list) or any(task not in TASKS for task in heads):
        raise ValueError(entry)
    return Key(tokens, slots, tuple(heads))
