"""The files in infra/nats: the server takes them, and they say what `hedgerow up` says."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from hedgerow_local import natsconf
from hedgerow_shared.natsserver import find_binary
from tests.security.guarded import INFRA_NATS, environment


def check(file: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(find_binary()), "-c", str(INFRA_NATS / file), "-t"]
    clean = {k: v for k, v in os.environ.items() if not k.endswith("_PASSWORD")}
    return subprocess.run(command, capture_output=True, text=True, env=clean | env)


@pytest.mark.parametrize("file", ["nats.conf", "cluster.conf"])
def test_nats_server_takes_the_file_and_misses_each_variable(file, tmp_path):
    env = environment(tmp_path)
    if file == "cluster.conf":
        env |= {"NATS_NAME": "n1", "NATS_HOST": "127.0.0.1", "NATS_PORT": "4222"}
        env |= {"CLUSTER_PORT": "6222", "CLUSTER_PASSWORD": "p-cluster-x"}
        env |= {"CLUSTER_ROUTES": '["nats://cluster:p-cluster-x@127.0.0.1:6222"]'}
    done = check(file, env)
    assert done.returncode == 0, done.stderr
    for name in env:
        assert check(file, {k: v for k, v in env.items() if k != name}).returncode != 0, name


def rules_of(user: str) -> dict[str, list[str]]:
    """publish and subscribe of a user, as accounts.conf lists them."""
    text = (INFRA_NATS / "accounts.conf").read_text("utf-8")
    (block,) = re.findall(rf"user: {user}, .*?\n      \}} \}}", text, re.DOTALL)
    found = re.findall(r"(publish|subscribe): \{ allow: (\[.*?\])", block, re.DOTALL)
    return {verb: json.loads(subjects) for verb, subjects in found}


@pytest.mark.parametrize("user", list(natsconf.PERMISSIONS))
def test_the_embedded_server_has_the_rules_of_the_production_file(user):
    ours = natsconf.PERMISSIONS[user]
    there = rules_of(user)
    if user == natsconf.PUBLIC:
        there["subscribe"] = [s.replace("_INBOX_public", "_INBOX") for s in there["subscribe"]]
    for verb in ("publish", "subscribe"):
        assert sorted(ours[verb]["allow"]) == sorted(there[verb])


def test_services_may_answer_alike_in_both():
    text = (INFRA_NATS / "accounts.conf").read_text("utf-8")
    there = re.findall(r'max: (\d+), expires: "(\w+)"', text)
    ours = [natsconf.PERMISSIONS[user]["allow_responses"] for user in ("gateway", "worker")]
    assert [(str(answers["max"]), answers["expires"]) for answers in ours] == there
    assert "allow_responses" not in natsconf.PERMISSIONS[natsconf.PUBLIC]
