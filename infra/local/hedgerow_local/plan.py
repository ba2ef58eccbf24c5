"""From flags and a machine to the processes `hedgerow up` starts. Pure: starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hedgerow_local.machine import Machine
from hedgerow_local.options import ServedModel, UpOptions

Role = Literal["nats", "worker", "gateway"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One process. `{id}` in argv becomes a new service id at every start.

    services: how many answer for it on the bus; the one called `{id}` is the last to be there
    """

    name: str
    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    services: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """A number that was chosen, and the reason a person is told."""

    value: int
    why: str


def choose_workers(options: UpOptions, machine: Machine) -> Choice:
    """Worker processes: as asked, else one per GPU, else by the number of cores."""
    if options.workers:
        return Choice(options.workers, "as asked by --workers")
    if on_gpu(options, machine):
        gpus = 1 if ":" in options.device else max(machine.gpus, 1)
        return Choice(gpus, "one per GPU")
    threads = choose_threads(options).value
    if threads > 1:
        count = max((machine.cores - 1) // threads, 1)
        return Choice(count, f"{machine.cores} cores, {threads} threads each")
    if machine.cores <= 2:
        return Choice(machine.cores, f"one per core ({machine.cores})")
    others = "nats-server" if options.together else "the gateway and nats-server"
    return Choice(machine.cores - 1, f"{machine.cores} cores, one left to {others}")


def choose_threads(options: UpOptions) -> Choice:
    if options.threads:
        return Choice(options.threads, "as asked by --threads")
    return Choice(1, "many workers with one thread each outrun one worker with many")


def on_gpu(options: UpOptions, machine: Machine) -> bool:
    return options.device.startswith("cuda") or (options.device == "auto" and machine.cuda)


def device_note(options: UpOptions, machine: Machine) -> str:
    """Where the workers run, and why."""
    if options.device != "auto":
        return f"{options.device} (as asked by --device)"
    if machine.cuda:
        return f"CUDA ({machine.gpus} NVIDIA device(s) and a torch that can use them)"
    why = "no NVIDIA device"
    if machine.gpus:
        why = f"torch {machine.torch or 'is absent'}" + " is a CPU build" * bool(machine.torch)
    return f"CPU with {machine.cpu_feature or 'neither AVX2 nor AVX-512'} ({why})"


def worker_specs(
    options: UpOptions,
    machine: Machine,
    models: Sequence[ServedModel],
    *,
    nats_url: str,
    env: Mapping[str, str],
) -> list[Spec]:
    count = choose_workers(options, machine).value
    start = (sys.executable, "-m", "hedgerow_scheduler")
    return [
        Spec(
            name=f"worker {index + 1}",
            role="worker",
            argv=(*start, *_worker_flags(options, machine, models, nats_url, index)),
            env=env,
        )
        for index in range(count)
    ]


def gateway_specs(
    options: UpOptions, models: Sequence[ServedModel], *, nats_url: str, env: Mapping[str, str]
) -> list[Spec]:
    flags = _gateway_flags(options, models, nats_url, shared=options.gateways > 1)
    return [
        Spec(
            name="gateway" if options.gateways == 1 else f"gateway {index + 1}",
            role="gateway",
            argv=(sys.executable, "-m", "hedgerow_gateway", "--gateway-id", "{id}", *flags),
            env=env,
        )
        for index in range(options.gateways)
    ]


def together_specs(
    options: UpOptions,
    machine: Machine,
    models: Sequence[ServedModel],
    *,
    nats_url: str,
    env: Mapping[str, str],
    logins: Mapping[Role, Mapping[str, str]],
) -> list[Spec]:
    """A gateway in every worker. logins: what either needs to come in, as its own variables."""
    count = choose_workers(options, machine).value
    gateway = _gateway_flags(options, models, nats_url, shared=count > 1)
    own = {
        name.replace("HEDGEROW_", f"HEDGEROW_{role.upper()}_", 1): value
        for role, login in logins.items()
        for name, value in login.items()
    }
    start = (sys.executable, "-m", "hedgerow_together", "--gateway-id", "{id}-gateway")
    return [
        Spec(
            name=f"worker {index + 1}",
            role="worker",
            argv=(
                *start,
                *gateway,
                "--",
                *_worker_flags(options, machine, models, nats_url, index),
            ),
            env={**env, **own},
            services=2,
        )
        for index in range(count)
    ]


def _worker_flags(
    options: UpOptions,
    machine: Machine,
    models: Sequence[ServedModel],
    nats_url: str,
    index: int,
) -> list[str]:
    spread = on_gpu(options, machine) and ":" not in options.device and machine.gpus > 1
    device = f"cuda:{index % machine.gpus}" if spread else options.device
    flags = ["--nats-url", nats_url, *_model_flags(options, models)]
    flags += ["--device", device, "--dtype", options.dtype]
    flags += ["--threads", str(choose_threads(options).value)]
    flags += ["--cpu-executor", options.cpu_executor, "--worker-id", "{id}"]
    if options.budget_tokens:
        flags += ["--budget-tokens", str(options.budget_tokens)]
    return flags


def _gateway_flags(
    options: UpOptions, models: Sequence[ServedModel], nats_url: str, *, shared: bool
) -> list[str]:
    """shared: several processes listen on the port."""
    flags = ["--nats-url", nats_url, "--host", options.host, "--port", str(options.port)]
    flags += [*_model_flags(options, models), "--token-ids", options.token_ids]
    return [*flags, "--reuse-port"] if shared else flags


def _model_flags(options: UpOptions, models: Sequence[ServedModel]) -> list[str]:
    flags: list[str] = []
    for model in models:
        flags += ["--model", model.flag]
    for length in options.max_seq_len:
        flags += ["--max-seq-len", length]
    return flags
