"""The README's commands are run, so they cannot rot."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
BLOCK = re.compile(r"<!-- tested -->\n```sh\n(.*?)```", re.DOTALL)


def commands() -> list[str]:
    """One string per command; a line that ends inside a quote or with a backslash goes on."""
    found: list[str] = []
    for block in BLOCK.findall(README):
        pending = ""
        for line in block.splitlines():
            pending += line + "\n"
            if not line.endswith("\\") and pending.count("'") % 2 == 0:
                found.append(pending.strip())
                pending = ""
        assert not pending, f"a command without an end: {pending}"
    return found


def test_the_readme_has_commands_that_are_tested():
    text = "\n".join(commands())
    for part in ("/v1/embeddings", "/v1/rerank", "hedgerow req", "hedgerow top", "/metrics"):
        assert part in text


def test_every_flag_of_up_is_in_the_readmes_table():
    from typer.testing import CliRunner

    from hedgerow_local.cli import app

    help_text = CliRunner().invoke(app, ["up", "--help"], env={"COLUMNS": "200"}).output
    flags = set(re.findall(r"--[a-z][a-z-]+", help_text)) - {"--help", "--no-deps"}
    documented = set(re.findall(r"`(--[a-z][a-z-]+)", README))
    assert flags - documented == set()


@pytest.mark.system
def test_every_command_of_the_readme_works(start_up):
    up = start_up()
    for command in commands():
        runnable = command.replace("http://127.0.0.1:8080", up.http_url).replace(".venv/bin/", "")
        done = subprocess.run(
            ["bash", "-c", runnable],
            capture_output=True,
            text=True,
            env={**up.env, "HEDGEROW_NATS_URL": up.nats_url, "HEDGEROW_PORT": "0"},
            timeout=60,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout.strip(), command
        if "-d '" in command or " req " in command:
            assert "error" not in json.loads(done.stdout), done.stdout
