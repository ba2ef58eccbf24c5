"""Settings of a service: flag > environment > file > default, checked once, frozen after.

A service writes its settings as one frozen msgspec.Struct; `load` fills it. The flag of the
field `max_seq_len` is `--max-seq-len`, its variable `HEDGEROW_MAX_SEQ_LEN`, its key in the
TOML file (`--config FILE`) `max_seq_len`. Tuple fields take a repeated flag, or commas in the
environment.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

import msgspec

from hedgerow_shared.errors import StartupError

S = TypeVar("S", bound=msgspec.Struct)


def load(kind: type[S], argv: Sequence[str], env: Mapping[str, str], *, prog: str) -> S:
    """Build settings of type `kind` from the four sources.

    `--help` prints each flag with its default and the line of `__help__` (a class mapping
    field -> text) and exits. Raises StartupError naming the flag or key that is wrong.
    """
    hints = get_type_hints(kind)
    parser = _parser(kind, hints, prog)
    flags = {k: v for k, v in vars(parser.parse_args(list(argv))).items() if v is not None}
    file = _read_file(flags.pop("config", None) or env.get("HEDGEROW_CONFIG"), hints)
    merged = {**file, **_from_env(hints, env), **flags}
    try:
        return msgspec.convert(merged, kind, strict=False)
    except msgspec.ValidationError as error:
        raise StartupError(f"{prog}: {_as_flag(str(error))}") from None


def _parser(
    kind: type[msgspec.Struct], hints: Mapping[str, Any], prog: str
) -> argparse.ArgumentParser:
    texts: Mapping[str, str] = getattr(kind, "__help__", {})
    parser = argparse.ArgumentParser(prog=prog, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same keys")
    for field in msgspec.structs.fields(kind):
        flag, text = f"--{field.name.replace('_', '-')}", texts.get(field.name, "")
        default = None if field.default is msgspec.NODEFAULT else field.default
        text += "" if default in (None, (), "") else f" (default: {default})"
        text = text.replace("%", "%%")
        if _is_tuple(hints[field.name]):
            parser.add_argument(flag, dest=field.name, action="append", help=text)
        elif hints[field.name] is bool:
            parser.add_argument(
                flag, dest=field.name, action=argparse.BooleanOptionalAction, help=text
            )
        else:
            parser.add_argument(flag, dest=field.name, help=text)
    return parser


def _from_env(hints: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, hint in hints.items():
        value = env.get(f"HEDGEROW_{name.upper()}")
        if value is not None and not name.startswith("_"):
            found[name] = [v for v in value.split(",") if v] if _is_tuple(hint) else value
    return found


def _read_file(path: str | None, hints: Mapping[str, Any]) -> dict[str, Any]:
    if not path:
        return {}
    try:
        values = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise StartupError(f"--config {path}: {error}") from None
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise StartupError(f"--config {path}: unknown key {unknown[0]!r}")
    return values


def _is_tuple(hint: Any) -> bool:
    return get_origin(hint) is tuple


def _as_flag(message: str) -> str:
    """msgspec says "... - at `$.port`" or "... field `port`"; people typed `--port`."""
    text, _, path = message.partition(" - at `$.")
    if path:
        return f"--{path.rstrip('`').replace('_', '-')}: {text}"
    text, missing, name = message.partition("missing required field `")
    return f"--{name.rstrip('`').replace('_', '-')}: is required" if missing else message
