"""Suite C, high-throughput embeddings: requests of 100 inputs from four processes at once."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clients.http import HttpClient
from benchmarks.rows import Row
from benchmarks.suites.context import Bench, model_for
from benchmarks.target import good, vectors

SUITE = "C throughput"
PROCESSES = 4
INPUTS = 100
LENGTHS = (512, 1024, 4096)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process sends: requests in these files, in turn, until `seconds` are over."""

    host: str
    port: int
    files: Sequence[str]
    inputs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Done:
    """One answered request; the clock is shared by all processes of this machine."""

    started: float
    ended: float
    inputs: int
    refused: int


def run(bench: Bench, lengths: tuple[int, ...] = LENGTHS) -> list[Row]:
    return [case(bench, length) for length in lengths]


def case(bench: Bench, length: int) -> Row:
    """Embeddings per second over all processes, from the first request to the last answer."""
    model = model_for(length)
    cost_s = _seconds_per_input(bench, model, length)
    window_s, at_most_s = (1.5, 3.0) if bench.quick else (20.0, 240.0)
    inputs = max(2, min(INPUTS, int(at_most_s / cost_s / PROCESSES)))
    with tempfile.TemporaryDirectory() as folder:
        files = _requests(bench, model, length, inputs, Path(folder))
        host, port = bench.target.host, bench.target.port
        plans = [Plan(host, port, files[i::PROCESSES], inputs, window_s) for i in range(PROCESSES)]
        done = hammer(plans)
    wall_s = max(d.ended for d in done) - min(d.started for d in done)
    total = sum(d.inputs for d in done)
    refused = sum(d.refused for d in done)
    notes = [f"{total} inputs in {wall_s:.1f} s"]
    notes += [f"requests of {inputs}: one of {INPUTS} takes too long"] if inputs < INPUTS else []
    notes += [f"{refused} refused with 429 and sent again"] if refused else []
    return bench.row(
        SUITE,
        f"{PROCESSES} processes x {inputs}x{length}",
        "emb/s",
        len(done),
        rate=total / wall_s,
        model=model,
        extra={"tokens/s": round(total * length / wall_s)},
        note="; ".join(notes),
    )


def _seconds_per_input(bench: Bench, model: str, length: int) -> float:
    """Seconds of machine time for one input, from a small request that is timed warm."""
    inputs = 2 if bench.quick else 4
    request = bench.target.request(model, bench.inputs(length, inputs, seed=7))
    with bench.target.client() as client:
        good(client.exchange(request))
        start = time.perf_counter()
        good(client.exchange(request))
    return (time.perf_counter() - start) / inputs


def _requests(bench: Bench, model: str, length: int, inputs: int, folder: Path) -> list[str]:
    """Two different requests for each process, written to files the processes read."""
    everything = bench.inputs(length, inputs * PROCESSES * 2, seed=length + 1)
    files: list[str] = []
    for start in range(0, len(everything), inputs):
        file = folder / str(start)
        file.write_bytes(bench.target.request(model, everything[start : start + inputs]))
        files.append(str(file))
    return files


def hammer(plans: Sequence[Plan]) -> list[Done]:
    """Run each plan in a process of its own, all starting together. Raises what one raised."""
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(len(plans)), context.Queue()
    children = [context.Process(target=_send, args=(plan, barrier, queue)) for plan in plans]
    for child in children:
        child.start()
    try:
        answers: list[Any] = [queue.get(timeout=900) for _ in children]
    finally:
        for child in children:
            child.join(5)
            if child.is_alive():
                child.kill()
    if failures := [answer for answer in answers if isinstance(answer, str)]:
        raise RuntimeError(f"a load process failed: {failures[0]}")
    return [done for answer in answers for done in answer]


def _send(plan: Plan, barrier: Any, queue: Any) -> None:
    try:
        requests = [Path(file).read_bytes() for file in plan.files]
        with HttpClient(plan.host, plan.port) as client:
            barrier.wait(60)
            queue.put(_loop(plan, requests, client))
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")


def _loop(plan: Plan, requests: Sequence[bytes], client: HttpClient) -> list[Done]:
    """At least one whole request, then more until the window is over."""
    done: list[Done] = []
    end = time.perf_counter() + plan.seconds
    while not done or time.perf_counter() < end:
        started, refused = time.perf_counter(), 0
        response = client.exchange(requests[len(done) % len(requests)])
        while response.status == 429:
            refused += 1
            time.sleep(float(response.header("retry-after-ms") or 1000) / 1000)
            response = client.exchange(requests[len(done) % len(requests)])
        ended = time.perf_counter()
        assert len(vectors(good(response))) == plan.inputs, "an answer lacks rows"
        done.append(Done(started, ended, plan.inputs, refused))
    return done
