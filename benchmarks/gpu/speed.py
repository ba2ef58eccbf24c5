"""Sections that ask how fast: captures, eager against replay, backends, kernels, priorities."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from benchmarks.gpu.bench import Bench, even, pipelined, random_batch, timed, vectors
from benchmarks.gpu.shapes import Shape
from benchmarks.rows import percentiles
from hedgerow_engine import buckets
from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.attention.choose import BACKENDS, BackendName
from hedgerow_engine.attention.flashinfer import TABLE_BYTES
from hedgerow_engine.attention.lengths import Lengths
from hedgerow_engine.device.cuda.attention import MAX_PLANNED, Kernels, KeyAttention
from hedgerow_engine.layers.kernels.base import FusedKernels
from hedgerow_engine.layers.kernels.twins import TorchKernels
from hedgerow_engine.layers.ops import Norm
from hedgerow_engine.layers.rotary import RopeParams, Rotary
from hedgerow_shared.ragged import Lane, RaggedBatch


def captures(bench: Bench) -> None:
    """Time and memory of one more graph, over many; what `graph_reserve_mb` is judged by.

    Every shape runs eagerly first and torch's own cache is given back, so that what is missing
    from the card afterwards went to the graphs and their pool.
    """
    for shape in bench.shapes:
        batches = [_nth_shape(bench, shape, i) for i in range(bench.sizes.graphs)]
        with bench.engine(shape, graph_inflection=8192) as engine:
            for batch in batches:
                vectors(engine, batch)
            before, made = _free(bench), engine.stats()
            for batch in batches:
                vectors(engine, batch)
            after, stats = _free(bench), engine.stats()
        count = float(stats["graph_captured"]) - float(made["graph_captured"])
        spent = float(stats["graph_capture_ms"]) - float(made["graph_capture_ms"])
        mib = (before - after) / (1 << 20)
        bench.add(
            "capture",
            shape.name,
            "hedgerow",
            "ms/graph",
            int(count),
            rate=spent / max(count, 1),
            extra={"mib_per_graph": mib / max(count, 1), "failed": stats["graph_capture_failed"]},
        )


def _nth_shape(bench: Bench, shape: Shape, i: int) -> RaggedBatch:
    """Batches of ever more tokens, each also cut in twice as many sequences."""
    tokens = buckets.cuda_tokens(min(16 + 64 * (i // 2), bench.sizes.budget_tokens))
    seqlens = even(tokens, min(512, shape.max_tokens))
    return random_batch(shape, seqlens if i % 2 else [n // 2 for n in seqlens for _ in (0, 1)])


def _free(bench: Bench) -> int:
    bench.runtime.settle()
    bench.runtime.trim()
    return bench.runtime.free_bytes()


def eager_and_replay(bench: Bench) -> None:
    """One whole step, launched kernel by kernel and as a graph, beside the roofline's floor."""
    for shape in bench.shapes:
        for how, limit in (("eager", 0), ("replay", 64)):
            with bench.engine(shape, graph_cache=limit, graph_inflection=16384) as engine:
                for tokens in bench.sizes.pass_tokens:
                    seqlens = even(tokens, min(512, shape.max_tokens))
                    batch = random_batch(shape, seqlens)
                    end = bench.until(4.0)
                    times = timed(
                        lambda b=batch: vectors(engine, b), samples=bench.sizes.samples, end=end
                    )
                    bench.add_times(
                        "pass",
                        f"{shape.name}, {tokens} tokens",
                        how,
                        times,
                        extra={"floor_ms": bench.floor_ms(shape, seqlens)},
                    )
        with bench.engine(shape, warmup_s=2.0, graph_inflection=None) as engine:
            point = engine.stats()["graph_inflection_tokens"]
        bench.add("inflection", shape.name, "hedgerow", "tokens", 1, rate=float(point))


def backends(bench: Bench) -> None:
    """Attention alone, each installed backend, ranked by time within one case."""
    total = bench.sizes.pass_tokens[-1]
    for dim, heads, kv, causal in ((32, 12, 12, False), (64, 12, 12, False), (128, 16, 8, True)):
        spec = AttentionSpec(heads, kv, dim, dim**-0.5, causal=causal)
        for longest in (min(512, total), total):
            case = f"D {dim}, {heads}/{kv} heads, {total // longest} x {longest}"
            found: list[tuple[float, str]] = []
            for name in BACKENDS:
                if name not in bench.installed:
                    bench.add("attention", case, name, "ms", 0, note="absent")
                    continue
                times = _attention(bench, spec, total, longest, name)
                if times is None:
                    bench.add("attention", case, name, "ms", 0, note="does not compute this")
                else:
                    found.append((percentiles(times)["p50"], name))
                    bench.add_times("attention", case, name, times)
            ranking = " < ".join(name for _, name in sorted(found))
            bench.add("attention", case, "ranking", "", len(found), note=ranking)


def _attention(
    bench: Bench, spec: AttentionSpec, total: int, longest: int, name: BackendName
) -> list[float] | None:
    runtime = bench.runtime
    dtype = torch.bfloat16
    kernels = Kernels(
        runtime, dtype=dtype, installed=frozenset({name, "sdpa"}), wanted=name, log=bench.log
    )
    count = total // longest
    bounds = torch.arange(count + 1, dtype=torch.int32) * longest
    bounds = torch.cat((bounds, bounds[-1:]))
    host = runtime.pinned((len(bounds),), torch.int32)
    host.copy_(bounds)
    cu = runtime.zeros((len(bounds),), torch.int32)
    cu.copy_(host)
    pinned = tuple(runtime.pinned((TABLE_BYTES,), torch.uint8) for _ in range(MAX_PLANNED))
    device = tuple(runtime.zeros((TABLE_BYTES,), torch.uint8) for _ in range(MAX_PLANNED))
    lengths = Lengths(cu, cu[:-1], cu[1:], total, longest, host, pinned, device)
    attention = KeyAttention(kernels, lengths)
    q, k, v = (
        torch.randn(total, heads, spec.head_dim, device=runtime.device).to(dtype)
        for heads in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    )
    stream = runtime.stream(urgent=True)
    with torch.inference_mode(), stream.current():
        attention.run(q, k, v, spec, None)
        if {name} != {n for names in kernels.chosen.values() for n in names}:
            return None

        def call() -> None:
            for _ in range(10):
                attention.run(q, k, v, spec, None)
            runtime.settle()

        runtime.settle()
        times = timed(call, samples=20, end=bench.until(1.0), warm=1)
    return [t / 10 for t in times]


def kernels(bench: Bench) -> None:
    """Fused kernels against plain torch on 512 rows of the width of a model."""
    rows, device = bench.sizes.pass_tokens[1], bench.runtime.device
    width = 1024 if bench.on_card else 64
    x = torch.randn(rows, width, device=device).bfloat16()
    wide = torch.randn(rows, 2 * width, device=device).bfloat16()
    weight = torch.ones(width, device=device)
    layer, rms = Norm(weight, weight, 1e-6), Norm(weight, None, 1e-6, "rms")
    starts = torch.zeros(2, dtype=torch.int32, device=device)
    ends = torch.tensor([rows, rows], dtype=torch.int32, device=device)
    with torch.device(device):
        rotary = Rotary(RopeParams(1e4), 64, rows)
    rotation = rotary.at(torch.arange(rows, dtype=torch.int32, device=device))
    heads, head_norm = x.view(rows, -1, 64), Norm(weight[:64], None, 1e-6, "rms")
    todo: dict[str, Callable[[FusedKernels], object]] = {
        "add + LayerNorm": lambda k: k.add_norm(x, weight, x, layer),
        "add + RMSNorm": lambda k: k.add_norm(x.clone(), None, x.clone(), rms),
        "bias + GELU": lambda k: k.bias_activation(x, weight, "gelu"),
        "SwiGLU": lambda k: k.gated(wide, "silu"),
        "head norm + rotary": lambda k: k.norm_rope(heads, rotation, head_norm),
        "pool + unit + int8 + bits": lambda k: k.pool(x, starts, ends, "mean"),
        "max over tokens": lambda k: k.reduce(x, starts, ends, "max"),
    }
    with torch.inference_mode():
        for name, work in todo.items():
            for one in (bench.fused, TorchKernels()):

                def call(one: FusedKernels = one, work: Callable[..., object] = work) -> None:
                    for _ in range(10):
                        work(one)
                    bench.runtime.settle()

                times = timed(call, samples=30, end=bench.until(0.5))
                case = f"{name}, {rows} x {width}"
                bench.add_times("kernel", case, one.name, [t / 10 for t in times])


def priorities(bench: Bench) -> None:
    """Queries of 16 tokens every 5 ms under a full bulk load: with two streams, and with one."""
    shape = bench.shapes[-1]
    longest = min(512, shape.max_tokens)
    bulk = random_batch(shape, even(bench.sizes.budget_tokens, longest))
    query = random_batch(shape, [min(16, shape.max_tokens)])
    for on in (True, False):
        with bench.engine(shape, priorities=on) as engine:
            for batch, lane in ((bulk, Lane.BULK), (query, Lane.QUERY)):
                for _ in range(3):
                    vectors(engine, batch, lane)
            seconds = min(6.0, bench.sizes.section_s / 4)
            end, done = bench.until(seconds), [0]

            def load(end: float = end, done: list[int] = done) -> None:
                while time.monotonic() < end:
                    pipelined(engine, [bulk] * 4)
                    done[0] += 4 * bulk.num_tokens

            thread = threading.Thread(target=load, name="bulk")
            thread.start()
            times: list[float] = []
            begin = time.monotonic()
            while time.monotonic() < end or not times:
                started = time.perf_counter()
                vectors(engine, query)
                times.append((time.perf_counter() - started) * 1e3)
                time.sleep(0.005)
            thread.join()
            rate = done[0] / (time.monotonic() - begin)
        name = "two streams" if on else "one stream"
        bench.add_times(
            "priorities", "1 x 16 under bulk", name, times, extra={"bulk_tokens_per_s": rate}
        )


def wake_up(bench: Bench) -> None:
    """From the end of the work to the waiting thread: a blocking event against asking for it."""
    stream = bench.runtime.stream(urgent=True)
    small = bench.runtime.zeros((16,), torch.float32)

    def work() -> None:
        small.add_(1.0)

    def blocking() -> None:
        event = stream.event()
        stream.launch(work)
        event.record()
        event.wait()

    def asking() -> None:
        event = stream.event()
        stream.launch(work)
        event.record()
        while not event.done():
            pass

    with torch.inference_mode():
        for name, call in (("blocking event", blocking), ("asking in a loop", asking)):
            times = timed(call, samples=bench.sizes.samples, end=bench.until(1.0))
            bench.add_times("wake-up", "launch to wake", name, times)
