from __future__ import annotations

from rich.console import Console

from hedgerow_local.top import plain, read, render


def stats(role: str, requests: int, **data):
    return {
        "id": f"{role}-1",
        "metadata": {"role": role},
        "endpoints": [{"num_requests": requests, "num_errors": 2, "data": data}] * 3,
    }


def worker(requests: int, tokens: int):
    engine = {"executor": "native", "dtype": "bfloat16"}
    return stats(
        "worker",
        requests,
        tokens=tokens,
        batches=4,
        backlog_tokens=77,
        queue_ms_p50=1.0,
        queue_ms_p99=2.0,
        models={"minilm": {"engine": engine}},
    )


def shown(now, before, width: int = 160) -> str:
    console = Console(width=width, record=True, file=None, quiet=True)
    console.quiet = False
    with console.capture() as captured:
        console.print(render(now, before, "nats://x", width))
    return captured.get()


def test_rates_are_differences_over_time():
    before = {"worker-1": read(worker(10, 1000), 1.0)}
    now = {"worker-1": read(worker(30, 2000), 3.0)}
    line = next(line for line in shown(now, before).splitlines() if "worker-1" in line)
    assert line.split()[:5] == ["worker", "worker-1", "10.0", "2", "500.0"]
    assert line.split()[5:8] == ["77", "500", "1.0/2.0"]
    assert "minilm (native bfloat16)" in line


def test_a_newcomer_has_no_rate_yet():
    now = {"gateway-1": read(stats("gateway", 5), 1.0)}
    line = next(line for line in shown(now, {}).splitlines() if "gateway-1" in line)
    assert line.split() == ["gateway", "gateway-1", "-", "2"]


def test_figures_repeated_at_every_endpoint_are_counted_once():
    assert read(stats("gateway", 5), 1.0).requests == 5


def test_an_empty_bus_is_said_to_be_empty():
    assert "nobody answers" in shown({}, {})


def test_a_service_of_another_make_does_not_break_the_table():
    now = {"x": read({"id": "x"}, 1.0)}
    assert "x" in shown(now, {})


def fleet():
    """Figures as wide as they get, and eight models on a worker."""
    many = worker(10**6, 10**8)
    engine = {"executor": "native avx512bf16", "dtype": "bfloat16"}
    many["id"] = "0123abcd"
    many["endpoints"][0]["data"] |= {
        "backlog_tokens": 65536,
        "queue_ms_p50": 120.5,
        "queue_ms_p99": 350.25,
        "models": {f"model-{index}": {"engine": engine} for index in range(8)},
    }
    return {"0123abcd": read(many, 3.0), "gateway-1": read(stats("gateway", 5), 3.0)}


def test_at_80_columns_each_service_has_one_whole_line_without_engines():
    lines = shown(fleet(), {}, 80).splitlines()
    assert len(lines) == 4  # head, columns, two services
    assert all(len(line) <= 80 for line in lines)
    busy = next(line for line in lines if "0123abcd" in line).split()
    assert busy[0] == "worker"
    assert "65536" in busy
    assert "120.5/350.2" in busy
    assert "avx512" not in "".join(lines)


def test_where_no_terminal_is_each_service_has_one_line_with_all_models():
    lines = plain(fleet(), {}, "nats://x").splitlines()
    assert len(lines) == 4
    busy = next(line for line in lines if "0123abcd" in line)
    assert "model-0 (native avx512bf16 bfloat16)" in busy
    assert "model-7 (native avx512bf16 bfloat16)" in busy
    assert lines[1].index("MODELS") == busy.index("model-0")


def test_an_empty_bus_is_said_to_be_empty_in_plain_text_too():
    assert plain({}, {}, "nats://x").splitlines()[1] == "nobody answers: is it running?"
