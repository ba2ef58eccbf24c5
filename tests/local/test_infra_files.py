"""Files for containers, clusters and dashboards: they parse, and name only what exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
YAML_FILES = sorted([*INFRA.glob("*.yaml"), *INFRA.glob("k8s/*.yaml")])
DOCKERFILES = sorted(INFRA.glob("docker/*.Dockerfile"))
DASHBOARDS = sorted(INFRA.glob("dashboards/*.json"))
SERVICES = {"gateway": "hedgerow_gateway", "worker": "hedgerow_scheduler"}


@cache
def flags_of(module: str) -> frozenset[str]:
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return frozenset(re.findall(r"--[a-z][a-z-]+", done.stdout))


def strings(node):
    if isinstance(node, dict):
        for key, value in node.items():
            yield from strings(key)
            yield from strings(value)
    elif isinstance(node, list):
        for value in node:
            yield from strings(value)
    elif isinstance(node, str):
        yield node


def documents(file: Path):
    return [document for document in yaml.safe_load_all(file.read_text("utf-8")) if document]


@pytest.mark.parametrize("file", YAML_FILES, ids=lambda f: f.name)
def test_yaml_parses_and_every_manifest_says_what_it_is(file):
    for document in documents(file):
        if file.parent.name == "k8s":
            assert {"apiVersion", "kind", "metadata"} <= set(document)
            assert document["metadata"]["name"]


def test_selectors_select_what_the_templates_are_labelled():
    pods = {}
    for file in INFRA.glob("k8s/*.yaml"):
        for document in documents(file):
            if document["kind"] in ("Deployment", "StatefulSet"):
                spec = document["spec"]
                labels = spec["template"]["metadata"]["labels"]
                assert spec["selector"]["matchLabels"] == labels
                pods[document["metadata"]["name"]] = labels
    for file in INFRA.glob("k8s/*.yaml"):
        for document in documents(file):
            if document["kind"] == "Service":
                assert document["spec"]["selector"] in pods.values()
            if document["kind"] == "PodDisruptionBudget":
                assert document["spec"]["selector"]["matchLabels"] in pods.values()
            if document["kind"] == "ScaledObject":
                assert document["spec"]["scaleTargetRef"]["name"] in pods


def service_commands():
    """(where, service, flags) of every command line in compose, Kubernetes and Dockerfiles."""
    for name, service in documents(INFRA / "compose.yaml")[0]["services"].items():
        role = name.split("-")[0]
        if role in SERVICES:
            yield f"compose:{name}", role, service["command"]
    for role in SERVICES:
        for document in documents(INFRA / "k8s" / f"{role}.yaml"):
            if document["kind"] == "Deployment":
                container = document["spec"]["template"]["spec"]["containers"][0]
                yield f"k8s:{role}", role, container["args"]
    for file in DOCKERFILES:
        command = re.search(r"^CMD (\[.*\])$", file.read_text("utf-8"), re.MULTILINE)
        assert command, file
        yield f"docker:{file.name}", file.name.split(".")[0].split("-")[0], json.loads(command[1])


@pytest.mark.parametrize(
    ("role", "command"), [pytest.param(r, c, id=w) for w, r, c in service_commands()]
)
def test_every_flag_in_a_command_exists(role, command):
    used = {part for part in command if part.startswith("--")}
    assert used
    assert used - flags_of(SERVICES[role]) == set()


def test_every_variable_of_ours_in_a_manifest_is_a_setting():
    for role in SERVICES:
        text = (INFRA / "k8s" / f"{role}.yaml").read_text("utf-8")
        for variable in re.findall(r"HEDGEROW_([A-Z_]+)", text):
            assert "--" + variable.lower().replace("_", "-") in flags_of(SERVICES[role])


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda f: f.name)
def test_dockerfiles_copy_what_exists_and_start_a_package_that_exists(file):
    text = file.read_text("utf-8")
    for sources in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
    module = re.search(r'ENTRYPOINT \["python", "-m", "(\w+)"\]', text)
    assert module
    assert module[1] in SERVICES.values()


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda f: f.name)
def test_dashboards_parse_and_have_something_to_show(file):
    board = json.loads(file.read_text("utf-8"))
    assert board["title"]
    assert board["panels"]
    queries = [t["expr"] for panel in board["panels"] for t in panel.get("targets", [])]
    assert queries
    assert all("hedgerow_" in query for query in queries)
