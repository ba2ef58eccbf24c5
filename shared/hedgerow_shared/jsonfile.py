"""A JSON file of a model folder, read with types: what is wrong is named by file and key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow_shared.errors import StartupError


def read_json(file: Path, *, missing: Any = None) -> Any:
    """The parsed file, or `missing` (unless None) where there is no file. StartupError else."""
    try:
        return json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise StartupError(f"{file}: missing; is this a Hugging Face model folder?") from None
    except (ValueError, OSError, RecursionError) as error:
        raise StartupError(f"{file}: not readable as JSON ({error})") from None


def read_list(file: Path) -> list[JsonObject]:
    """A file that holds a list of objects; empty where there is no file."""
    values = read_json(file, missing=[])
    if not isinstance(values, list) or any(not isinstance(v, dict) for v in values):
        raise StartupError(f"{file}: must be a list of objects")
    return [JsonObject(file, value) for value in values]


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object and the file it is from. Each getter raises StartupError naming both."""

    file: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path, *, optional: bool = False) -> JsonObject:
        values = read_json(file, missing={} if optional else None)
        if not isinstance(values, dict):
            raise StartupError(f"{file}: must be an object, found {type(values).__name__}")
        return cls(file, values)

    def section(self, key: str) -> JsonObject:
        """The object under `key`, or this one where there is none."""
        inner = self.values.get(key)
        if inner is None:
            return self
        if not isinstance(inner, dict):
            raise self.wrong(key, "an object")
        return JsonObject(self.file, inner)

    def wrong(self, key: str, wanted: str) -> StartupError:
        return StartupError(f"{self.file}: {key} must be {wanted}, found {self.values.get(key)!r}")

    def whole(self, *keys: str) -> int:
        """The first of `keys` that is there: a positive whole number."""
        key = next((k for k in keys if k in self.values), keys[0])
        value = self.maybe_whole(key)
        if value is None:
            raise self.wrong(key, "a positive whole number")
        return value

    def maybe_whole(self, key: str) -> int | None:
        """A positive whole number, or None where it is absent or null."""
        value = self.values.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise self.wrong(key, "a positive whole number")
        return value

    def maybe_integer(self, key: str) -> int | None:
        """A whole number of either sign, or None where it is absent or null."""
        value = self.values.get(key)
        if value is not None and type(value) is not int:
            raise self.wrong(key, "a whole number")
        return value

    def maybe_text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return default if value is None else value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; a single text counts as a list of one."""
        value = self.values.get(key) or []
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or any(not isinstance(v, str) for v in value):
            raise self.wrong(key, "a list of texts")
        return tuple(value)

    def wholes(self, key: str) -> tuple[int, ...]:
        """A list of positive whole numbers."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or any(type(v) is not int or v < 1 for v in value):
            raise self.wrong(key, "a list of positive whole numbers")
        return tuple(value)

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.values.get(key) or {}
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return dict(value)
