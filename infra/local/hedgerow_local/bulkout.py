"""The collected results get the name and the form that were asked for."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from hedgerow_local.bulkrows import BulkOptions

_KINDS = {"float16": "<f2", "int8": "|i1", "binary": "|u1"}


def finish(options: BulkOptions) -> None:
    """Replace the output in one step, with all of it."""
    if options.out.suffix != ".npz":
        options.part.replace(options.out)
        return
    import numpy as np

    names: list[Any] = []
    vectors: list[Any] = []
    with options.part.open("rb") as lines:
        for line in lines:
            row = json.loads(line)
            if "error" in row:
                sys.stderr.write(f"hedgerow: row {row['id']}: {row['error']['message']}\n")
                continue
            names.append(row["id"])
            raw = base64.b64decode(row["embedding"])
            vectors.append(np.frombuffer(raw, _KINDS.get(options.dtype, "<f4")))
    kind, ids = id_array(names)
    with options.fresh.open("wb") as file:
        np.savez(file, ids=np.array(ids), id_kind=np.array(kind), vectors=np.array(vectors))
        file.flush()
        os.fsync(file.fileno())
    options.fresh.replace(options.out)
    options.part.unlink()


def id_array(names: Sequence[str | int]) -> tuple[str, Sequence[str | int]]:
    """(kind, ids) such that no two different names become one in an array of numpy.

    kind: "int" and "text" for names as they are; "json" for each name as JSON, where numbers and
    texts are mixed or a text ends in NUL, which numpy drops
    """
    if names and all(isinstance(name, int) for name in names):
        return "int", names
    if all(isinstance(name, str) and not name.endswith("\0") for name in names):
        return "text", names
    return "json", [json.dumps(name, ensure_ascii=False) for name in names]
