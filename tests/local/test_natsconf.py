from __future__ import annotations

import json
import subprocess

from hedgerow_local.natsconf import NatsUser, users_text
from hedgerow_shared.natsserver import config_text, find_binary


def test_without_users_nothing_is_said_about_them():
    assert users_text([]) == ""


def test_passwords_and_permissions_survive_quoting():
    hostile = NatsUser("gateway", 'a"b$c\\d', {"publish": ["hedgerow.chunk.>"]})
    name, _, rest = users_text([hostile]).partition(": ")
    assert name == "authorization"
    assert json.loads(rest)["users"][0]["password"] == 'a"b$c\\d'


def test_nats_server_itself_accepts_the_file(tmp_path):
    users = [NatsUser("worker", "pw", {"subscribe": ["hedgerow.chunk.*"]}), NatsUser("up", "p2")]
    file = tmp_path / "nats.conf"
    file.write_text(config_text(port=4333, store_dir=tmp_path / "s", extra=users_text(users)))
    done = subprocess.run(
        [str(find_binary()), "-c", str(file), "-t"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
