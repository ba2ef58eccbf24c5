"""Whether a model fits into this machine's memory, asked before it is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hedgerow_engine.settings import DTypeChoice
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_FAST_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
# Heads that a model is trained with, and which an embedder leaves in the file.
_LEFT_OUT = ("lm_head.", "cls.", "vocab_projector.")


def check_memory(weights: Weights, dtype: DTypeChoice | None) -> None:
    """Refuse a model that cannot fit. dtype: what a CPU is to multiply; None = no copy of the
    matrices is made in this machine's own memory."""
    available = available_bytes()
    needed = [(weights.num_bytes, available)]
    if dtype is not None:
        needed.append((loaded_bytes(weights, dtype), min(available, cgroup_bytes())))
    for wanted, free in needed:
        if wanted > free:
            raise StartupError(
                f"{weights.folder}: weights of {wanted >> 20} MiB, but only "
                f"{free >> 20} MiB of memory are free; take a smaller model or a bigger machine"
            )


def loaded_bytes(weights: Weights, dtype: DTypeChoice) -> int:
    """A packed copy of every matrix, and embedding tables as they lie in the file."""
    each = _item_bytes(dtype)
    total = 0
    for raw in weights.tensors:
        if "embed" in raw.name:
            total += raw.data.nbytes
        elif raw.data.ndim > 1 and not any(part in raw.name for part in _LEFT_OUT):
            total += raw.data.size * each
    return total


def available_bytes(proc: Path = _PROC) -> int:
    """What the kernel would give to a new process, without swapping."""
    found = _field(proc / "meminfo", "MemAvailable:")
    if found is not None:
        return found << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cgroup_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Room in the tightest of this process's control groups; a very large number without one."""
    rooms = [1 << 62]
    for group in _groups(proc, cgroups):
        for limit, used, dropped in (
            ("memory.max", "memory.current", ("inactive_file", "active_file")),
            (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ("total_inactive_file", "total_active_file"),
            ),
        ):
            most, taken = _number(group / limit), _number(group / used)
            if most is not None and taken is not None:
                # Pages of files count as used, and go when anybody needs room: a model that was
                # just downloaded must not be refused for its own bytes.
                pages = sum(_field(group / "memory.stat", name) or 0 for name in dropped)
                rooms.append(max(most - taken + pages, 0))
    return min(rooms)


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The folders of this process's groups, of version 2 and of version 1, up to their roots."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if number != "0" and "memory" not in kinds.split(","):
            continue
        root = cgroups if number == "0" else cgroups / "memory"
        inner = root / path.strip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root))


def _item_bytes(dtype: DTypeChoice) -> int:
    """Bytes of a number as it is multiplied; the smaller of two where the CPU does not say."""
    if dtype != "auto":
        return 4 if dtype == "float32" else 2
    info = _text(_PROC / "cpuinfo")
    flags = {flag for line in info.splitlines() for flag in line.split()}
    return 4 if "avx2" in flags and not flags & _FAST_BFLOAT16 else 2


def _field(file: Path, name: str) -> int | None:
    """The number behind `name` in a file of lines such as `name 123 kB`."""
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


def _number(file: Path) -> int | None:
    """None where there is no such file, and for "max"."""
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
