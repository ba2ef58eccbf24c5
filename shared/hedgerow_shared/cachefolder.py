"""Where this user's caches lie; nothing in them is needed, all of it saves time."""

from __future__ import annotations

import os
from pathlib import Path


def cache_base() -> Path:
    """$HEDGEROW_CACHE_DIR, else $XDG_CACHE_HOME/hedgerow, else ~/.cache/hedgerow.

    `~` is the home folder here too: a unit file or a compose file does not expand it. A user
    without any home gets a path that cannot be made, which every cache takes as "none".
    """
    chosen = os.environ.get("HEDGEROW_CACHE_DIR")
    if chosen:
        return _home(Path(chosen))
    base = os.environ.get("XDG_CACHE_HOME")
    return (_home(Path(base)) if base else _home(Path("~")) / ".cache") / "hedgerow"


def _home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        # ~nobody: no such user, so it is a name like any other. And this one has no home.
        return path if path.parts[0] != "~" else Path(os.devnull).joinpath(*path.parts[1:])
