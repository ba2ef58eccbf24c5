"""Everything a GPU can say about this engine, in one table, in under eight minutes.

    python benchmarks/gpu_check.py                 on a card; writes benchmarks/results/gpu.json
    python benchmarks/gpu_check.py --rehearse      the same code on a rehearsed card, no results
    python benchmarks/gpu_check.py --only A,race   some sections

Runs from a plain checkout with torch, triton, numpy, safetensors and tokenizers. Rows of FlashInfer
and FlashAttention-4 say "absent" where these are not installed. Exit code 1 if a row FAILED.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in (".", "shared", "services/engine"):
    sys.path.insert(0, str(ROOT / folder))

import torch  # noqa: E402

from benchmarks.gpu import correct, speed, suites  # noqa: E402
from benchmarks.gpu.bench import (  # noqa: E402
    REHEARSAL,
    Bench,
    Sizes,
    ceilings,
    driver_version,
)
from benchmarks.gpu.shapes import MINILM, QWEN3, TINY_BERT, TINY_QWEN3  # noqa: E402
from benchmarks.machine import SCRATCH  # noqa: E402
from benchmarks.rows import table, write  # noqa: E402
from hedgerow_engine.settings import EngineSettings  # noqa: E402
from hedgerow_shared.errors import StartupError  # noqa: E402

LIMIT_S = 450.0
SECTIONS: Mapping[str, Callable[[Bench], None]] = {
    "parity": correct.parity,
    "race": correct.race,
    "pass": speed.eager_and_replay,
    "capture": speed.captures,
    "A": suites.latency,
    "B": suites.scoring,
    "C": suites.throughput,
    "priorities": speed.priorities,
    "attention": speed.backends,
    "kernel": speed.kernels,
    "float8": correct.fp8,
    "wake-up": speed.wake_up,
}


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    settings = EngineSettings(
        device="cuda", warmup_s=0.5, graph_hits="", graph_inflection=8192, graph_cache=512
    )
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            bench = _rehearsal(settings, Path(scratch)) if options.rehearse else _card(settings)
        except StartupError as error:
            print(f"gpu_check: {error}", file=sys.stderr)
            return 2
        bench.deadline = begin + options.seconds
        names = options.only.split(",") if options.only else list(SECTIONS)
        ceilings(bench)
        failed = [name for name in names if not _run(bench, name)]
    print(f"\n{_about(bench)}, {time.monotonic() - begin:.0f} s\n")
    print(table(bench.rows))
    failed += [row.suite for row in bench.rows if row.note.startswith("FAILED")]
    if bench.on_card and not options.only:
        print(f"\nwritten: {write('gpu', bench.rows, quick=False)}")
    elif not bench.on_card:
        print("\na rehearsal: no number above was measured on a GPU, nothing is written")
    if failed:
        print(f"FAILED: {', '.join(dict.fromkeys(failed))}")
    return 1 if failed else 0


def _run(bench: Bench, name: str) -> bool:
    """One section. What it raises becomes a row: the others still run."""
    if time.monotonic() >= bench.deadline:
        bench.add(name, "all", "", "", 0, note="skipped: out of time")
        return True
    begin = time.monotonic()
    try:
        with torch.inference_mode():
            SECTIONS[name](bench)
    except Exception as error:
        traceback.print_exc()
        first = str(error).strip().split("\n", 1)[0][:200]
        bench.add(name, "all", "", "", 0, note=f"FAILED: {type(error).__name__}: {first}")
        return False
    bench.log(f"{name}: {time.monotonic() - begin:.1f} s")
    return True


def _card(settings: EngineSettings) -> Bench:
    """The first card. Raises StartupError of one line when there is none that serves."""
    from hedgerow_engine.device.cuda.device import (
        check_arch,
        fused_kernels,
        installed_backends,
        open_cuda,
    )

    open_cuda(settings, _say).close()
    from hedgerow_engine.device.cuda.driver import CudaRuntime

    runtime = CudaRuntime(0)
    check_arch(runtime, "gpu_check")
    return Bench(
        runtime=runtime,
        installed=installed_backends(_say),
        fused=fused_kernels(runtime.device, _say),
        settings=settings,
        sizes=Sizes(),
        shapes=(MINILM, QWEN3),
        folder=SCRATCH / "gpu",
        log=_say,
        deadline=0.0,
        driver=driver_version(),
    )


def _rehearsal(settings: EngineSettings, folder: Path) -> Bench:
    """The same sections on host memory and tiny models: a typo shows before a card is paid for."""
    from hedgerow_engine.device.cuda.rehearsal import Rehearsal
    from hedgerow_engine.layers.kernels.twins import TorchKernels

    torch.set_num_threads(1)
    return Bench(
        runtime=Rehearsal(at_once=True),
        installed=frozenset({"sdpa"}),
        fused=TorchKernels(),
        settings=settings,
        sizes=REHEARSAL,
        shapes=(TINY_BERT, TINY_QWEN3),
        folder=folder,
        log=_say,
        deadline=0.0,
    )


def _about(bench: Bench) -> str:
    """Card, driver and versions: without them no number means anything."""
    kernels = ", ".join(sorted(bench.installed))
    packages = ", ".join(f"{name} {version}" for name, version in bench.versions.items())
    return f"{bench.machine}; {packages}; fused kernels {bench.fused.name}, attention {kernels}"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check.py", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rehearse", action="store_true", help="no card: walk through the code")
    parser.add_argument("--only", default="", help=f"of: {', '.join(SECTIONS)}")
    parser.add_argument("--seconds", type=float, default=LIMIT_S, help="stop starting sections")
    options = parser.parse_args(arguments)
    unknown = set(filter(None, options.only.split(","))) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}")
    return options


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
