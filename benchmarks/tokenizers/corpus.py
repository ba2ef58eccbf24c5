"""Text in many languages that lies on most machines: message catalogues and Python's docs."""

from __future__ import annotations

import gettext
import pydoc_data.topics
import random
import sys
from pathlib import Path

_FOLDERS = (Path("/usr/share/locale"), Path(sys.prefix) / "share" / "locale")


def english() -> str:
    """Python's topic pages as one line."""
    topics: dict[str, str] = pydoc_data.topics.topics
    return " ".join(" ".join(topics[name] for name in sorted(topics)).split())


def documents(size_bytes: int, *, seed: int = 7) -> tuple[list[str], int]:
    """(documents of 1 to 8 KB, number of languages), about `size_bytes` together, shuffled.

    Without catalogues on this machine it is English alone, repeated as often as it takes.
    """
    rng = random.Random(seed)
    files = [file for folder in _FOLDERS for file in sorted(folder.glob("*/LC_MESSAGES/*.mo"))]
    rng.shuffle(files)
    found: list[str] = []
    languages: set[str] = set()
    total = 0
    for file in files:
        if total >= size_bytes * 9 // 10:
            break
        text = _catalogue(file)
        languages.add(file.parts[-3])
        for part in _parts(text, rng):
            found.append(part)
            total += len(part.encode())
    text = english()
    while total < size_bytes:
        for part in _parts(text, rng):
            found.append(part)
            total += len(part)
    rng.shuffle(found)
    return found, len(languages) + 1


def _catalogue(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            messages = gettext.GNUTranslations(stream)
    except (OSError, ValueError, UnicodeDecodeError):
        return ""
    catalogue: dict[object, str] = getattr(messages, "_catalog", {})
    return "\n".join(text for key, text in catalogue.items() if key and text)


def _parts(text: str, rng: random.Random) -> list[str]:
    parts: list[str] = []
    start = 0
    while start < len(text):
        stop = start + rng.randint(400, 6000)
        parts.append(text[start:stop])
        start = stop
    return parts
