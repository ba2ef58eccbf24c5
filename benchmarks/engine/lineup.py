"""Which engines take part for a model, and why the others do not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.engine.contender import Contender, ContenderError
from benchmarks.harness import say
from benchmarks.machine import SCRATCH
from benchmarks.models import MINILM, QWEN3, Shape
from benchmarks.peers.install import installed, python

HERE = Path(sys.executable)
ORACLE = "transformers fp32"


def threads() -> int:
    """Threads of every engine that is not a one-thread one. Ours go up to two per pass."""
    return min(2, machine.cores())


def our_name(executor: str, count: int) -> str:
    return f"hedgerow {executor}, {count} thread{'s' if count > 1 else ''}"


def lineup(shape: Shape, folder: Path) -> tuple[list[Contender], dict[str, str]]:
    """Contenders in the order of the table, and absent ones with the reason.

    The oracle (transformers, fp32) is always among the contenders where torch is installed.
    """
    two, model = threads(), str(folder)
    chosen = [
        _ours("native", two, model),
        _ours("native", 1, model),
        _ours("packed", two, model),
        _here(ORACLE, "transformers", model, "float32", pooling=shape.pooling),
        _here("transformers bf16", "transformers", model, "bfloat16", pooling=shape.pooling),
    ]
    # The same forward as transformers; once is enough, on the model that takes no time.
    if shape is MINILM:
        chosen += [
            _here("sentence-transformers fp32", "sentence-transformers", model, "float32"),
            _here("sentence-transformers bf16", "sentence-transformers", model, "bfloat16"),
        ]
    absent = {} if shape is MINILM else {"sentence-transformers": "not run: as transformers"}
    graphs, absent_graphs = _graphs(shape, folder)
    absent |= absent_graphs
    if "onnx" in graphs:
        ask = {"engine": "onnxruntime", "graph": str(graphs["onnx"]), "threads": two}
        chosen.append(Contender("onnxruntime fp32", ask, python("onnx")))
    if "openvino" in graphs:
        wanted = {"fp32": "float32", "bf16": "bfloat16"}
        if shape is QWEN3:
            absent["openvino fp32"] = "not run: two copies of this model in fp32 are enough"
            del wanted["fp32"]
        for short, dtype in wanted.items():
            ask = {"engine": "openvino", "graph": str(graphs["openvino"]), "threads": two}
            chosen.append(
                Contender(f"openvino {short}", ask | {"dtype": dtype}, python("openvino"))
            )
    return chosen, absent


def opened(chosen: list[Contender], absent: dict[str, str]) -> list[Contender]:
    """Open all, loading side by side; those that cannot move to `absent` with their reason."""
    running: list[Contender] = []
    for contender in chosen:
        contender.start()
    for contender in chosen:
        try:
            contender.facts = contender.receive()["facts"]
            running.append(contender)
        except ContenderError as error:
            absent[contender.name] = f"absent: {str(error).partition(': ')[2]}"
            contender.close()
            say(f"{contender.name}: {absent[contender.name]}")
    return running


def floor(dtype: str) -> Contender:
    """The process that measures what this machine's matrix units sustain."""
    ask = {"engine": "gemm", "threads": threads(), "dtype": dtype}
    return Contender("GEMM floor", ask, HERE)


def _ours(executor: str, count: int, model: str) -> Contender:
    ask: Mapping[str, Any] = {
        "engine": "hedgerow",
        "model": model,
        "threads": count,
        "executor": executor,
    }
    return Contender(our_name(executor, count), ask, HERE)


def _here(name: str, engine: str, model: str, dtype: str, **more: str) -> Contender:
    ask = {"engine": engine, "model": model, "threads": threads(), "dtype": dtype, **more}
    return Contender(name, ask, HERE)


def _graphs(shape: Shape, folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """ONNX graphs by peer, exported once, and the peers that have none with the reason."""
    missing = {p: _not_installed(p) for p in ("onnx", "openvino") if not installed(p)}
    if "onnx" in missing:
        absent = {"onnxruntime": missing["onnx"]}
        reason = missing.get("openvino", "absent: the onnx peer exports its graph")
        return {}, absent | {"openvino": reason}
    absent = {"openvino": missing["openvino"]} if "openvino" in missing else {}
    where = SCRATCH / "onnx" / f"{shape.name}.onnx"
    if not where.with_suffix(".done").is_file():
        say(f"exporting {shape.name} to ONNX (once)")
        where.parent.mkdir(parents=True, exist_ok=True)
        script = Path(__file__).parent.parent / "peers" / "export_onnx.py"
        command = [str(python("onnx")), str(script), str(folder), str(where), shape.pooling]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            reason = f"absent: the ONNX export failed: {last[:200]}"
            return {}, {"onnxruntime": reason, "openvino": reason}
        where.with_suffix(".done").touch()
    fused = where.with_suffix(".fused.onnx")
    graphs = {"onnx": fused if fused.is_file() else where}
    return graphs | ({} if absent else {"openvino": where}), absent


def _not_installed(peer: str) -> str:
    return f"absent: python -m benchmarks peers install {peer}"
