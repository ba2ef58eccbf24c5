from __future__ import annotations

import os
import stat

import pytest

from hedgerow_local.state import DataDir, Running, running_in
from hedgerow_shared.errors import StartupError


def test_the_folder_and_its_files_are_private(tmp_path):
    data = DataDir(tmp_path / "d")
    data.acquire()
    data.write_private(data.nats_config, "secret")
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    assert stat.S_IMODE(data.nats_config.stat().st_mode) == 0o600
    data.write_private(data.nats_config, "again")
    assert data.nats_config.read_text() == "again"


def test_two_owners_of_one_folder_are_refused_with_the_remedy(tmp_path):
    first, second = DataDir(tmp_path), DataDir(tmp_path)
    first.acquire()
    with pytest.raises(StartupError, match=rf"pid {os.getpid()}.*--data-dir .*2 --port 0"):
        second.acquire()
    first.release()
    second.acquire()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match=r"--data-dir .*file/d"):
        DataDir(tmp_path / "file" / "d").acquire()


def test_other_commands_find_the_running_system_and_only_a_running_one(tmp_path):
    data = DataDir(tmp_path)
    data.acquire()
    assert running_in(tmp_path) is None
    alive = Running(os.getpid(), "nats://127.0.0.1:1", "http://127.0.0.1:2")
    data.announce(alive)
    assert running_in(tmp_path) == alive
    data.announce(Running(2**22 + 1, "nats://x", "http://y"))  # beyond pid_max: nobody
    assert running_in(tmp_path) is None
    data.release()
    assert not (tmp_path / "up.json").exists()
