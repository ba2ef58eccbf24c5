"""One command line and one environment for two services."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hedgerow_together.__main__ import half


def test_a_half_sees_the_shared_variables_and_its_own_which_win():
    env = {
        "PATH": "/bin",
        "HEDGEROW_NATS_URL": "nats://all",
        "HEDGEROW_NATS_PASSWORD": "p",
        "HEDGEROW_WORKER_NATS_PASSWORD": "w",
        "HEDGEROW_GATEWAY_ID": "g1",
    }
    worker, gateway = half(env, "WORKER"), half(env, "GATEWAY")
    assert worker["HEDGEROW_NATS_URL"] == gateway["HEDGEROW_NATS_URL"] == "nats://all"
    assert (worker["HEDGEROW_NATS_PASSWORD"], gateway["HEDGEROW_NATS_PASSWORD"]) == ("w", "p")
    assert gateway["HEDGEROW_GATEWAY_ID"] == "g1", "a setting whose own name begins like that"


def ran(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hedgerow_together", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_help_says_where_the_flags_are():
    done = ran("--help")
    assert done.returncode == 0
    assert "python -m hedgerow_gateway" in done.stdout and " -- " in done.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--port", "x"), "--port"),
        (("--", "--threads", "0"), "--threads"),
        (("--",), "no model"),
        (("--", "--device", "fake", "--model", "m=/nowhere"), "/nowhere"),
    ],
    ids=["gateway", "worker", "no model", "no such model"],
)
def test_a_mistake_in_either_half_is_one_line(flags, words):
    done = ran(*flags)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("hedgerow-together: ") and words in line
    assert line.count("hedgerow-") == 1
