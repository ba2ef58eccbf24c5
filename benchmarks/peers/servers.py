"""`python -m benchmarks peers servers`: other servers and ours on the same texts, in turns.

All get texts over HTTP at `/v1/embeddings` (infinity: `/embeddings`), the same client, the same
length cap of 512 tokens, bfloat16 where the CPU has it. Only one server runs at a time. Ours runs
as it starts by itself, and, for single texts, as somebody would start it who wants those fast.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import machine, server
from benchmarks.clients.http import HttpClient, get
from benchmarks.harness import Limits, Vectors, sample, say
from benchmarks.machine import SCRATCH
from benchmarks.models import minilm_folder
from benchmarks.peers.install import PEERS, installed, python, venv
from benchmarks.reference import reference_vectors
from benchmarks.rows import Row, percentiles
from benchmarks.server import NotStartedError, Process, free_port
from benchmarks.suites import concurrency, latency, throughput
from benchmarks.suites.context import LENGTHS, MINILM, Bench, warm_up
from benchmarks.target import Target, good
from benchmarks.text import Pool, standard_text

Starter = Callable[[Path], "contextlib.AbstractContextManager[Target]"]

QUERY_TOKENS = 16
OURS, OURS_FAST = "hedgerow", "hedgerow for latency"
FAST_FLAGS = ("--together", "--workers", "1", "--threads", str(machine.cores()))
"""One worker with every core, its gateway beside it."""


def run(names: Sequence[str], *, quick: bool) -> list[Row]:
    """Suites A, C and D and a short query on each server; absent ones are named in a row."""
    folder = uncapped_minilm()
    pool = Pool(folder / "tokenizer.json", standard_text())
    oracle = _oracle(folder, pool)
    starters: dict[str, Starter] = {
        OURS: _hedgerow,
        OURS_FAST: _hedgerow_fast,
        "infinity": _infinity,
        "vllm": _vllm,
    }
    rows: list[Row] = []
    for name, start in starters.items():
        if names and name.partition(" ")[0] not in names:
            continue
        if name in PEERS and not installed(name):
            rows.append(_absent(name, f"absent: python -m benchmarks peers install {name}"))
            continue
        try:
            with start(folder) as target:
                bench = Bench(
                    target=target,
                    pool=pool,
                    quick=quick,
                    dtype=_dtype(),
                    suite_prefix="servers: ",
                    versions=_versions(name),
                )
                warm_up(bench, {MINILM: oracle})
                rows += _measure_single(bench) if name == OURS_FAST else _measure(bench)
        except (NotStartedError, OSError) as error:
            rows.append(_absent(name, f"absent: {str(error)[:300]}"))
    return beside_ours(rows)


def beside_ours(rows: Sequence[Row]) -> list[Row]:
    """The same rows; another's holds how its time, or its rate, compares with ours as it starts
    by itself, and its time with ours for latency.

    Suites with one line each (throughput, whose requests may be smaller on a slow server) are
    matched by their suite, the others by their case too.
    """
    found: list[Row] = []
    for row in rows:
        extra = dict(row.extra)
        if row.engine != OURS and (like := _like(rows, row, OURS)):
            if row.p50 and like.p50:
                extra["time / ours"] = row.p50 / like.p50
            if row.rate and like.rate:
                extra["rate / ours"] = row.rate / like.rate
        like = None if row.engine in (OURS, OURS_FAST) else _like(rows, row, OURS_FAST)
        if like and row.p50 and like.p50:
            extra["time / ours for latency"] = row.p50 / like.p50
        found.append(replace(row, extra=extra))
    return found


def _like(rows: Sequence[Row], row: Row, engine: str) -> Row | None:
    like = [r for r in rows if r.engine == engine and r.suite == row.suite]
    like = like if len(like) == 1 else [r for r in like if r.case == row.case]
    return like[0] if like else None


def uncapped_minilm() -> Path:
    """MiniLM with its length cap raised from 256 to 512, which the peers read from its files."""
    where = SCRATCH / "models" / "minilm-512"
    if not (where / "done").is_file():
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(minilm_folder(), where)
        cap = {"max_seq_length": LENGTHS[MINILM], "do_lower_case": False}
        (where / "sentence_bert_config.json").write_text(json.dumps(cap), "utf-8")
        (where / "done").touch()
    return where


def _measure_single(bench: Bench) -> list[Row]:
    """What one caller sees who sends one text at a time."""
    return [_short_query(bench), *latency.run(bench, (128, 512))]


def _measure(bench: Bench) -> list[Row]:
    return [
        *_measure_single(bench),
        *concurrency.run(bench),
        *throughput.run(bench, (512,)),
    ]


def _short_query(bench: Bench) -> Row:
    """One text of about ten words at a time, on one connection."""
    limits: Limits = bench.limits(400, 10.0)
    texts = bench.inputs(QUERY_TOKENS, 256, seed=21)
    requests = [bench.target.request(MINILM, [text]) for text in texts]
    with bench.target.client() as client:
        times = sample(lambda i: good(client.exchange(requests[i % len(requests)])), limits)
    return bench.row("short query", "1x16", "ms", len(times), model=MINILM, **percentiles(times))


def _oracle(folder: Path, pool: Pool) -> tuple[list[str], Vectors]:
    """Texts of several lengths and the vectors sentence-transformers gives for their tokens."""
    texts = [pool.texts(n, 1, seed=100 + n)[0] for n in (QUERY_TOKENS, 128, LENGTHS[MINILM])]
    say("reference vectors by sentence-transformers (fp32)")
    return texts, reference_vectors([(folder, [pool.encode(text) for text in texts])])[0]


def _dtype() -> str:
    return "bfloat16" if machine.has_bf16() else "float32"


@contextlib.contextmanager
def _hedgerow(folder: Path) -> Generator[Target, None, None]:
    with server.hedgerow({MINILM: folder}, lengths={MINILM: LENGTHS[MINILM]}) as target:
        yield replace(target, takes_ids=False)


@contextlib.contextmanager
def _hedgerow_fast(folder: Path) -> Generator[Target, None, None]:
    lengths = {MINILM: LENGTHS[MINILM]}
    with server.hedgerow({MINILM: folder}, lengths=lengths, flags=FAST_FLAGS) as target:
        yield replace(target, name=OURS_FAST, takes_ids=False)


@contextlib.contextmanager
def _infinity(folder: Path) -> Generator[Target, None, None]:
    port = free_port()
    command = [str(venv("infinity") / "bin" / "infinity_emb"), "v2", "--model-id", str(folder)]
    command += ["--served-model-name", MINILM, "--engine", "torch", "--device", "cpu"]
    command += ["--dtype", _dtype()]
    command += ["--no-bettertransformer", "--host", "127.0.0.1", "--port", str(port)]
    env = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    with _started("infinity", command, env, port):
        yield _target("infinity", port, "/embeddings")


@contextlib.contextmanager
def _vllm(folder: Path) -> Generator[Target, None, None]:
    port = free_port()
    command = [str(venv("vllm") / "bin" / "vllm"), "serve", str(folder), "--runner", "pooling"]
    command += ["--served-model-name", MINILM, "--max-model-len", str(LENGTHS[MINILM])]
    command += ["--dtype", _dtype()]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    env = {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": str(machine.cores()),
    }
    with _started("vllm", command, env, port):
        yield _target("vllm", port, "/v1/embeddings")


@contextlib.contextmanager
def _started(
    name: str, command: Sequence[str], env: dict[str, str], port: int
) -> Generator[None, None, None]:
    """A peer's server, ready when `/health` answers 200."""
    process = Process(command, env)
    began = time.monotonic()
    try:
        process.start()
        while not _healthy(port):
            if process.ended() or time.monotonic() - began > 240:
                raise NotStartedError(f"{name}: {process.tail(3)}")
            time.sleep(0.25)
        say(f"{name}: ready after {time.monotonic() - began:.0f} s")
        yield
    finally:
        process.stop()


def _healthy(port: int) -> bool:
    try:
        with HttpClient("127.0.0.1", port, timeout_s=5) as client:
            return client.exchange(get(f"127.0.0.1:{port}", "/health")).status == 200
    except OSError:
        return False


def _target(name: str, port: int, path: str) -> Target:
    return Target(name=name, port=port, path=path, takes_ids=False)


def _versions(name: str) -> Mapping[str, str]:
    """Version of the peer as its own environment knows it; ours is in every row anyway."""
    if name not in PEERS:
        return machine.versions()
    package = PEERS[name].packages[0].partition("[")[0].partition("==")[0]
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    command = [str(python(name)), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {**machine.versions(), package: done.stdout.strip()}


def _absent(name: str, why: str) -> Row:
    say(f"{name}: {why}")
    return Row(suite="servers", case="all", engine=name, unit="ms", samples=0, note=why)
