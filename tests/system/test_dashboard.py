"""Every metric that a dashboard or an autoscaler asks for is one that a running system has."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

import pytest

from tests.system.up_process import until

pytestmark = pytest.mark.system

INFRA = Path(__file__).parents[2] / "infra"
USERS = [INFRA / "dashboards" / "hedgerow.json", INFRA / "k8s" / "keda.yaml"]


def metrics(up) -> set[str]:
    with urllib.request.urlopen(up.http_url + "/metrics", timeout=10) as reply:
        return set(re.findall(r"^(hedgerow_\w+)", reply.read().decode(), re.MULTILINE))


@pytest.mark.parametrize("file", USERS, ids=lambda f: f.name)
def test_every_metric_that_is_asked_for_exists(start_up, file):
    wanted = set(re.findall(r"\bhedgerow_\w+(?=[{\[),])", file.read_text("utf-8")))
    assert wanted
    # Only executors with a graph for each shape count passes by kind.
    up = start_up("--workers", "1", "--cpu-executor", "packed")
    assert up.embed("hello") == 200
    assert up.embed("far too long for it " * 500) == 200
    until(lambda: "hedgerow_worker_batches" in metrics(up), "figures of the worker", 15)
    time.sleep(0.1)
    assert wanted - metrics(up) == set()
