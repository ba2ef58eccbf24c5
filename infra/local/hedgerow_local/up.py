"""`hedgerow up`: everything on one machine, watched until Ctrl-C, stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hedgerow_local import banner, natsconf, plan, ports, ready, state
from hedgerow_local.keeper import Keeper
from hedgerow_local.logs import LogSink
from hedgerow_local.machine import Machine, look
from hedgerow_local.options import (
    DEFAULT_NATS_PORT,
    DEFAULT_PORT,
    ServedModel,
    UpOptions,
    check,
    check_machine,
    find_models,
)
from hedgerow_local.target import bus_options
from hedgerow_shared import natsserver
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.errors import StartupError

T = TypeVar("T")

_NATS_LISTENS_S = 10.0
_GRACE_S: Mapping[plan.Role, float] = {"gateway": 35.0, "worker": 35.0, "nats": 10.0}
_STOP_ORDER: tuple[plan.Role, ...] = ("gateway", "worker", "nats")
_DOUBLE_CLICK_S = 0.3


@dataclass(slots=True)
class Stop:
    """Set by the first signal; `hard` by the second, when a person does not want to wait."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hard: asyncio.Event = field(default_factory=asyncio.Event)
    _first_s: float = 0.0

    def on_signal(self) -> None:
        if not self.asked.is_set():
            self._first_s = time.monotonic()
            self.asked.set()
        # make and terminals may deliver one Ctrl-C twice.
        elif time.monotonic() - self._first_s > _DOUBLE_CLICK_S:
            self.hard.set()


async def up(options: UpOptions) -> int:
    """Start, announce, watch, drain. Returns the exit status.

    Raises StartupError with one line when this machine or these flags cannot serve.
    """
    check(options)
    if options.nats_url:  # before models, which may be downloaded
        await (await Bus.connect(bus_options(options.nats_url, "hedgerow-up"))).close()
    machine = look()
    check_machine(options, machine)
    models = find_models(options)
    options = choose_http_port(options)
    data_dir = state.DataDir(options.data_dir)
    if not options.nats_url:
        natsserver.find_binary()
        data_dir.acquire()
    stop, sink = Stop(), LogSink()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, stop.on_signal)
    try:
        return await _Run(options, machine, models, data_dir, stop, sink).serve()
    finally:
        data_dir.release()
        sink.close()


def choose_http_port(options: UpOptions) -> UpOptions:
    """The options with a port that is free (0 asks for any).

    Raises StartupError when nobody can listen there, naming who does and the remedy.
    """
    try:
        if not options.port:
            return replace(options, port=natsserver.free_port(options.host))
        if ports.is_free(options.host, options.port):
            return options
    except OSError as error:
        raise StartupError(
            f"--host {options.host}: not an address of this machine ({error.strerror or error})"
        ) from None
    running = state.running_in(options.data_dir)
    if running and urlsplit(running.http_url).port == options.port:
        raise StartupError(
            f"port {options.port} is taken by a hedgerow that runs (pid {running.pid}): stop it, "
            f"or start this one beside it with {state.beside(options.data_dir)}"
        )
    who = ports.holder(options.port)
    other = DEFAULT_PORT + 1 if options.port == DEFAULT_PORT else DEFAULT_PORT
    raise StartupError(
        f"port {options.port} is taken{f' by {who}' if who else ''}: stop it, or choose another "
        f"with --port, for example --port {other}"
    )


def choose_nats_port(options: UpOptions) -> plan.Choice:
    """The embedded server's port. Raises StartupError when the one asked for is taken."""
    wanted = options.nats_port or DEFAULT_NATS_PORT
    if ports.is_free("127.0.0.1", wanted):
        return plan.Choice(wanted, "")
    running = state.running_in(options.data_dir)
    if running and urlsplit(running.nats_url).port == wanted:
        who = f"a hedgerow that runs (pid {running.pid})"
    else:
        who = ports.holder(wanted)
    taken = f"port {wanted} is taken{f' by {who}' if who else ''}"
    if options.nats_port:
        raise StartupError(
            f"--nats-port: {taken}: choose another, or join that server with "
            f"--nats-url nats://127.0.0.1:{wanted}"
        )
    return plan.Choice(natsserver.free_port(), taken)


class _Run:
    """One life of `hedgerow up`."""

    def __init__(
        self,
        options: UpOptions,
        machine: Machine,
        models: Sequence[ServedModel],
        data_dir: state.DataDir,
        stop: Stop,
        sink: LogSink,
    ) -> None:
        self._options = options
        self._machine = machine
        self._models = models
        self._data_dir = data_dir
        self._stop = stop
        self._sink = sink
        self._keepers: list[Keeper] = []
        self._logins: dict[natsconf.Role, natsconf.Login] = {}
        self._hopeless: asyncio.Future[StartupError] = asyncio.get_running_loop().create_future()

    async def serve(self) -> int:
        begin = time.monotonic()
        try:
            nats_url, why_port = await self._start_bus()
            services = self._service_specs(nats_url)
            for spec in services:
                self._keep(spec)
            said = await self._until_ready(nats_url)
            if said is not None:
                self._announce(nats_url, why_port, said, time.monotonic() - begin)
                await self._stop.asked.wait()
        finally:
            await self._stop_everything()
        return 0

    async def _start_bus(self) -> tuple[str, str]:
        """(url, why it has an unusual port or "")."""
        if self._options.nats_url:
            return self._options.nats_url, ""
        port = choose_nats_port(self._options)
        url = f"nats://127.0.0.1:{port.value}"
        roles: tuple[natsconf.Role, ...] = ("gateway", "worker")
        self._logins = {role: natsconf.new_login(role) for role in roles}
        text = natsserver.config_text(
            port=port.value,
            store_dir=self._data_dir.store,
            extra=natsconf.guarded(list(self._logins.values())),
        )
        self._data_dir.write_private(self._data_dir.nats_config, text)
        for login in self._logins.values():
            self._data_dir.write_private(self._data_dir.login(login.role), login.toml(url))
        argv = (str(natsserver.find_binary()), "-c", str(self._data_dir.nats_config))
        self._keep(plan.Spec(name="nats", role="nats", argv=argv))
        listening = ports.wait_listening("127.0.0.1", port.value, _NATS_LISTENS_S)
        if await self._unless_hopeless(listening) is False:
            raise StartupError(
                f"nats-server did not listen on port {port.value} within {_NATS_LISTENS_S:.0f} s"
            )
        return url, port.why

    def _service_specs(self, nats_url: str) -> list[plan.Spec]:
        env = {"HEDGEROW_LOG_LEVEL": self._options.log_level}
        if sys.platform != "linux":  # there, `child` asks the kernel for the same
            env["HEDGEROW_DIE_WITH_PARENT"] = "1"
        options, machine, models = self._options, self._machine, self._models
        worker, gateway = self._login_env("worker"), self._login_env("gateway")
        if options.together:
            logins: dict[plan.Role, Mapping[str, str]] = {"worker": worker, "gateway": gateway}
            return plan.together_specs(
                options, machine, models, nats_url=nats_url, env=env, logins=logins
            )
        return [
            *plan.worker_specs(options, machine, models, nats_url=nats_url, env=env | worker),
            *plan.gateway_specs(options, models, nats_url=nats_url, env=env | gateway),
        ]

    def _login_env(self, role: natsconf.Role) -> dict[str, str]:
        """Nothing where we joined a server: its users come from our own environment."""
        return self._logins[role].env if self._logins else {}

    def _keep(self, spec: plan.Spec) -> None:
        keeper = Keeper(spec, self._sink, on_hopeless=self._give_up)
        self._keepers.append(keeper)
        keeper.start()

    def _give_up(self, reason: StartupError) -> None:
        if not self._hopeless.done():
            self._hopeless.set_result(reason)

    async def _until_ready(self, nats_url: str) -> list[dict[str, Any]] | None:
        """What the services say of themselves once all serve; None when a signal came first."""
        services = [keeper for keeper in self._keepers if keeper.spec.role != "nats"]
        name = "hedgerow-up"
        bus = BusOptions(nats_url, name) if self._logins else bus_options(nats_url, name)
        said = await self._unless_hopeless(
            ready.wait_ready(bus, self._options.host, self._options.port, services, self._sink)
        )
        if said is not None:
            for keeper in self._keepers:
                keeper.started_once = True
        return said

    async def _unless_hopeless(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """Await it, but raise what a process could not start for, and give None at a signal."""
        task = asyncio.create_task(waiting)
        stopped = asyncio.create_task(self._stop.asked.wait())
        await asyncio.wait({task, stopped, self._hopeless}, return_when=asyncio.FIRST_COMPLETED)
        finished = task.done()
        task.cancel()
        stopped.cancel()
        await asyncio.wait({task, stopped})
        if self._hopeless.done():
            raise self._hopeless.result()
        return task.result() if finished else None

    def _announce(
        self, nats_url: str, why_port: str, said: list[dict[str, Any]], took_s: float
    ) -> None:
        http_url = f"http://{banner.reachable(self._options.host)}:{self._options.port}"
        if not self._options.nats_url:
            self._data_dir.announce(state.Running(os.getpid(), nats_url, http_url))
        text = banner.text(
            self._options,
            self._machine,
            self._models,
            http_url=http_url,
            nats_url=nats_url,
            why_port=why_port,
            engines=ready.engines(said, [model.alias for model in self._models]),
            took_s=took_s,
        )
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(text)
            sys.stdout.flush()

    async def _stop_everything(self) -> None:
        """Gateways first, so that no new work comes; then workers; the bus last."""
        hard = asyncio.create_task(self._kill_when_asked_twice())
        if self._stop.asked.is_set():
            self._sink.put("up", "draining; Ctrl-C again to stop at once")
        for role in _STOP_ORDER:
            group = [keeper for keeper in self._keepers if keeper.spec.role == role]
            # Two services in one process leave one after the other.
            grace_s = _GRACE_S[role]
            await asyncio.gather(*(k.stop(grace_s * k.spec.services) for k in group))
        hard.cancel()

    async def _kill_when_asked_twice(self) -> None:
        await self._stop.hard.wait()
        self._sink.put("up", "stopping at once")
        for keeper in self._keepers:
            keeper.kill()
