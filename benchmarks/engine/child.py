"""One engine in one process, commanded over its standard streams: a JSON object per line.

Runs in whichever environment holds the engine, so it needs numpy and that engine only.
`python -m benchmarks.engine.child '{"engine": ..., ...}'`; commands: see `_COMMANDS`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.engine.adapters import Adapter, open_adapter

Sequences = Sequence[npt.NDArray[np.int32]]


def load_case(file: str) -> Sequences:
    """Sequences of token ids of one workload, as the parent wrote them."""
    with np.load(file) as kept:
        ids, lengths = kept["ids"], kept["lengths"]
    return [np.asarray(part, np.int32) for part in np.split(ids, np.cumsum(lengths)[:-1])]


def _time(adapter: Adapter, sequences: Sequences, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Time whole passes over the workload until `samples` or `seconds`, at least `at_least`."""
    for _ in range(ask["warm_up"]):
        adapter.embed(sequences)
    times: list[float] = []
    gap_s, end = ask["gap_ms"] / 1e3, time.perf_counter() + ask["seconds"]
    while len(times) < ask["at_least"] or (
        len(times) < ask["samples"] and time.perf_counter() < end
    ):
        if gap_s:
            time.sleep(gap_s)
        start = time.perf_counter()
        adapter.embed(sequences)
        times.append((time.perf_counter() - start) * 1e3)
    return {"times_ms": times}


def _embed(adapter: Adapter, sequences: Sequences, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Vectors of the workload, written to the .npy file `out`."""
    np.save(ask["out"], adapter.embed(sequences))
    return {}


def _first(adapter: Adapter, sequences: Sequences, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Time every sequence alone, five times in a row: shapes this process has not seen yet."""
    rows: list[list[float]] = []
    for sequence in sequences:
        times: list[float] = []
        for _ in range(5):
            start = time.perf_counter()
            adapter.embed([sequence])
            times.append((time.perf_counter() - start) * 1e3)
        rows.append(times)
    return {"rows_ms": rows}


def _gemm(adapter: Any, _: Sequences, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Best sustained GFLOP/s over the [rows, inner, columns] of `ask["shapes"]`."""
    rates = [adapter.gflops(*shape, ask["seconds"]) for shape in ask["shapes"]]
    return {"gflops": max(rates)}


_COMMANDS = {"gemm": _gemm, "time": _time, "embed": _embed, "first": _first}


def main() -> None:
    """Answer `{"do": NAME, "case": FILE, ...}` lines until the input ends.

    Libraries print to standard output, so the answers get a descriptor of their own.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

    def answer(value: Mapping[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        adapter = open_adapter(json.loads(sys.argv[1]))
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"})
        return
    answer({"facts": adapter.facts})
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            sequences = load_case(ask["case"]) if "case" in ask else []
            answer(_COMMANDS[ask["do"]](adapter, sequences, ask))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
