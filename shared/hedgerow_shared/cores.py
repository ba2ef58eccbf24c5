"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores this process may use: affinity, cut by a container's CPU quota; at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text("ascii").split()
        cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError):  # no quota: the file is absent or says "max"
        pass
    return max(cores, 1)
