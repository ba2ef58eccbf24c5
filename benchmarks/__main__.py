"""`python -m benchmarks COMMAND`: everything this folder measures. See README.md beside this."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.harness import WrongVectorsError, say
from benchmarks.rows import Row, table, write
from benchmarks.server import NotStartedError
from hedgerow_shared.errors import StartupError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0 measured, 1 refused to measure, 2 misused."""
    options = _parser().parse_args(argv)
    try:
        if note := machine.busy_warning():
            say(note)
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except (WrongVectorsError, NotStartedError, StartupError, RuntimeError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    suites = _command(commands, "suites", _suites, "suites A to E and the overhead, on our server")
    suites.add_argument("only", nargs="*", help="of A B C D E O; all if none is named")
    suites.add_argument("--corpus", type=Path, help="folder with corpus.jsonl to take texts from")
    suites.add_argument("--price-per-hour", type=float, default=0.10, help="of this machine, in $")
    suites.add_argument("--workers", type=int, default=0, help="as in `hedgerow up`")

    engine = _command(commands, "engine", _engine, "our executors beside other engines")
    engine.add_argument("--model", action="append", help="minilm, bert-base or qwen3-0.6b")
    engine.add_argument(
        "--minutes", type=float, default=12.0, help="of timing, for all models together"
    )

    _command(commands, "tokenizers", _tokenizers, "our unigram encoder beside the library")

    retrieval = _command(commands, "retrieval", _retrieval, "nDCG@10 beside sentence-transformers")
    retrieval.add_argument("--corpus", type=Path, required=True, help="folder in Cranfield form")

    peers = _command(commands, "peers", _peers, "install other engines, or measure their servers")
    peers.add_argument("action", choices=("install", "servers"))
    peers.add_argument("names", nargs="*", help="onnx openvino infinity vllm; all if none is named")

    _command(commands, "simulate", _simulate, "dispatch policies on the real packer and splitter")
    _command(commands, "scaling", _scaling, "1, 2, 4, 8 workers of a fake engine; gateway ceiling")
    _command(commands, "large", _large, "queries beside requests of 5,000 documents, fake engine")
    _command(
        commands, "footprint", _footprint, "download, disk, start and memory, with torch or not"
    )
    _command(commands, "report", _report, "README's table from the results files")
    return parser


def _command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("--quick", action="store_true", help="within a minute; fewer samples")
    parser.set_defaults(run=run)
    return parser


def _finish(name: str, rows: Sequence[Row], *, quick: bool) -> int:
    print(table(rows))
    say(f"wrote {write(name, rows, quick=quick)}")
    return 0


def _suites(options: argparse.Namespace) -> int:
    from benchmarks.suites.run import run

    run(
        only="".join(options.only).upper() or "ABCDEO",
        quick=options.quick,
        corpus=options.corpus,
        price_per_hour=options.price_per_hour,
        workers=options.workers,
    )
    return 0


def _engine(options: argparse.Namespace) -> int:
    from benchmarks.engine.compare import run
    from benchmarks.models import BERT_BASE, MINILM, QWEN3, SHAPES

    everything = (MINILM, BERT_BASE, QWEN3)
    shapes = [SHAPES[name] for name in options.model or ()]
    shapes = shapes or ([MINILM] if options.quick else everything)
    minutes = min(options.minutes, 0.5) if options.quick else options.minutes
    rows = run(shapes=shapes, quick=options.quick, minutes=minutes)
    # One model alone is a trial: the full results stay what they are.
    return _finish("engine", rows, quick=options.quick or len(shapes) < len(everything))


def _tokenizers(options: argparse.Namespace) -> int:
    from benchmarks.tokenizers.run import run

    return _finish("tokenizers", run(quick=options.quick), quick=options.quick)


def _retrieval(options: argparse.Namespace) -> int:
    from benchmarks.retrieval import run

    rows = run(options.corpus, quick=options.quick)
    return _finish("retrieval", rows, quick=options.quick)


def _peers(options: argparse.Namespace) -> int:
    if options.action == "install":
        from benchmarks.peers.install import install

        return 1 if install(options.names) else 0
    from benchmarks.peers.servers import run

    return _finish("servers", run(options.names, quick=options.quick), quick=options.quick)


def _simulate(options: argparse.Namespace) -> int:
    from benchmarks.simulator.run import run

    return _finish("simulator", run(quick=options.quick), quick=options.quick)


def _large(options: argparse.Namespace) -> int:
    from benchmarks.large import run

    return _finish("large", run(quick=options.quick), quick=options.quick)


def _footprint(options: argparse.Namespace) -> int:
    from benchmarks.footprint import run

    return _finish("footprint", run(quick=options.quick), quick=options.quick)


def _scaling(options: argparse.Namespace) -> int:
    from benchmarks.scaling import run

    return _finish("scaling", run(quick=options.quick), quick=options.quick)


def _report(_: argparse.Namespace) -> int:
    from benchmarks.report import update_readme

    say(f"{'changed' if update_readme() else 'already up to date:'} README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
