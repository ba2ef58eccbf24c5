from __future__ import annotations

from rich.console import Console

from hedgerow_local.top import read, render


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


def shown(now, before) -> str:
    console = Console(width=160, record=True, file=None, quiet=True)
    console.quiet = False
    with console.capture() as captured:
        console.print(render(now, before, "nats://x"))
    return captured.get()


def test_rates_are_differences_over_time():
    before = {"worker-1": read(worker(10, 1000), 1.0)}
    now = {"worker-1": read(worker(30, 2000), 3.0)}
    line = next(line for line in shown(now, before).splitlines() if "worker-1" in line)
    assert line.split()[:5] == ["worker", "worker-1", "10.0", "2", "500.0"]
    assert "77 tok" in line
    assert "500 tok" in line
    assert "1.0 / 2.0" in line
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
