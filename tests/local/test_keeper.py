"""A process under `hedgerow up`, with small Python scripts in the place of services."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hedgerow_local.keeper import Backoff, Keeper
from hedgerow_local.plan import Spec
from hedgerow_shared.errors import StartupError

pytestmark = pytest.mark.system

QUICK = Backoff(first_s=0.02, longest_s=0.05)
SLEEP = "import time; time.sleep(60)"


class Sink:
    """A LogSink that keeps the lines."""

    def __init__(self):
        self.lines: list[tuple[str, str]] = []

    def put(self, source: str, text: str) -> None:
        self.lines.append((source, text))

    def text(self) -> str:
        return "\n".join(f"{source}|{text}" for source, text in self.lines)


def script(code: str) -> Spec:
    return Spec(name="worker 1", role="worker", argv=(sys.executable, "-c", textwrap.dedent(code)))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def until(condition, deadline_s: float = 10.0):
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)
    return value


@contextlib.asynccontextmanager
async def kept(spec: Spec, *, started_once: bool = True):
    sink, hopeless = Sink(), []
    keeper = Keeper(spec, sink, on_hopeless=hopeless.append, backoff=QUICK)  # type: ignore[arg-type]
    keeper.started_once = started_once
    keeper.start()
    try:
        yield keeper, sink, hopeless
    finally:
        await keeper.stop(2.0)


async def test_a_killed_process_is_started_again_and_it_is_said():
    async with kept(script(SLEEP)) as (keeper, sink, _):
        first = (await until(lambda: keeper.child)).pid
        os.kill(first, signal.SIGKILL)
        second = await until(lambda: keeper.child and keeper.child.pid != first and keeper.child)
        assert second.pid != first
        assert "worker 1 was ended by SIGKILL; starting it again" in sink.text()
        assert f"started again (pid {second.pid})" in sink.text()
    assert not alive(second.pid)


async def test_every_start_gets_an_id_of_its_own():
    spec = Spec(name="worker 1", role="worker", argv=(sys.executable, "-c", SLEEP, "{id}"))
    async with kept(spec) as (keeper, _, _):
        first = await until(lambda: keeper.child)
        assert first.id in Path(f"/proc/{first.pid}/cmdline").read_text()
        os.kill(first.pid, signal.SIGKILL)
        second = await until(lambda: keeper.child and keeper.child is not first and keeper.child)
        assert second.id != first.id


async def test_a_startup_error_at_the_first_start_is_the_reason_and_is_said_once():
    error = "hedgerow-worker: no such model; do this"
    code = f"import sys; print('loading'); print('{error}'); sys.exit(2)"
    async with kept(script(code), started_once=False) as (_, sink, hopeless):
        reason = (await until(lambda: hopeless))[0]
        assert isinstance(reason, StartupError)
        assert str(reason) == error
        assert "no such model" not in sink.text()
        assert "worker 1|loading" in sink.text()


async def test_a_crash_at_the_first_start_is_tried_three_times():
    code = "import sys; print('boom'); sys.exit(7)"
    async with kept(script(code), started_once=False) as (_, sink, hopeless):
        reason = (await until(lambda: hopeless))[0]
        assert str(reason) == "worker 1 ended with status 7 while starting; it said: boom"
        assert sink.text().count("worker 1|boom") == 3


async def test_once_it_served_a_startup_error_is_shown_and_tried_for_ever():
    code = "import sys; print('hedgerow-worker: weights are gone'); sys.exit(2)"
    async with kept(script(code)) as (_, sink, hopeless):
        await until(lambda: sink.text().count("weights are gone") > 4)
        assert not hopeless


async def test_a_program_that_does_not_exist_is_a_reason_not_a_crash():
    spec = Spec(name="nats", role="nats", argv=("/nonexistent/nats-server",))
    async with kept(spec, started_once=False) as (_, _, hopeless):
        assert "/nonexistent/nats-server" in str((await until(lambda: hopeless))[0])


async def test_a_process_that_ignores_sigterm_is_killed_with_its_children():
    code = """
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print("grandchild", grandchild.pid, flush=True)
        time.sleep(60)
    """
    async with kept(script(code)) as (keeper, sink, _):
        await until(lambda: "grandchild" in sink.text())
        pids = [keeper.child.pid, int(sink.lines[-1][1].split()[1])]
        await keeper.stop(0.2)
        assert "did not end within" in sink.text()
        await until(lambda: not any(alive(pid) for pid in pids))


async def test_pauses_grow_while_it_keeps_dying_young_and_have_a_limit():
    backoff = Backoff(first_s=0.2, longest_s=10.0)
    assert [backoff.pause_s(deaths) for deaths in (1, 2, 3, 4, 20)] == [0.2, 0.4, 0.8, 1.6, 10.0]


async def test_a_line_without_end_does_not_stop_the_log():
    code = "print('x' * 3_000_000); print('after')\n" + SLEEP
    spec = Spec(name="worker 1", role="worker", argv=(sys.executable, "-uc", code))
    async with kept(spec) as (_, sink, _):
        await until(lambda: ("worker 1", "after") in sink.lines)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal")
async def test_nothing_is_orphaned_when_up_itself_is_killed(tmp_path):
    """The whole arrangement in a process of its own, which is then killed."""
    code = f"""
        import asyncio, sys
        from hedgerow_local.keeper import Keeper
        from hedgerow_local.logs import LogSink
        from hedgerow_local.plan import Spec
        async def main():
            spec = Spec(name="worker 1", role="worker", argv=(sys.executable, "-c", {SLEEP!r}))
            keeper = Keeper(spec, LogSink(), on_hopeless=print)
            keeper.start()
            while keeper.child is None:
                await asyncio.sleep(0.01)
            print(keeper.child.pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await until(lambda: not alive(pid), 5.0)
