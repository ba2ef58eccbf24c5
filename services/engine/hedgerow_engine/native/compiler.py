"""From IR text to machine code, and into memory.

LLVM's optimiser is not run: what kernels write is already what should run, and the passes took
two thirds of the compile time without changing a measurement (docs/decisions/0051). Its code
generator, at full level, selects instructions and registers. `compile_unit` gives an object
file's bytes, which `cache` keeps; `Program` loads them.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from hedgerow_engine.native.ir import Unit
from hedgerow_engine.native.rungs import Rung, missing_features

_names = itertools.count()


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def host_features() -> Mapping[str, bool]:
    """What LLVM found this CPU (and its operating system) can do."""
    _initialize()
    return dict(llvm.get_host_cpu_features())


def target_of(rung: Rung) -> tuple[str, str]:
    """LLVM's CPU name and feature string to compile `rung` with on this machine.

    The machine's own, unless it has more than the rung: then the compiler must be kept from
    using what the rung's real machines lack.
    """
    _initialize()
    higher = rung.name == "avx2" and host_features().get("avx512f")
    if higher or missing_features(rung, host_features()):
        return rung.portable_cpu, ""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def compile_unit(unit: Unit) -> bytes:
    """Compile to an object file. The rung's features must have been checked."""
    cpu, features = target_of(unit.rung)
    assert not missing_features(unit.rung, host_features()), "would abort the process"
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(f'target triple = "{target.triple}"\n{unit}')
    return machine.emit_object(module)


@cache
def no_executable_memory() -> str:
    """Why nothing that is compiled could run in this process; "" = it can. LLVM would not say so:
    it ends the process."""
    if platform.system() != "Linux":
        return ""
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    libc = ctypes.CDLL(None, use_errno=True)
    place = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if not libc.mprotect(ctypes.c_void_p(place), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        return ""
    return (
        f"this process may not make memory executable ({os.strerror(ctypes.get_errno())}): allow "
        "it (systemd: MemoryDenyWriteExecute=no; SELinux: execmem)"
    )


class Program:
    """Machine code in memory. Its functions are valid as long as this object lives."""

    def __init__(self, object_file: bytes, exports: Sequence[str]) -> None:
        """Raises RuntimeError when the bytes are not a linkable object."""
        _initialize()
        self._jit = _jit()
        library = llvm.JITLibraryBuilder().add_object_img(object_file).add_current_process()
        for name in exports:
            library.export_symbol(name)
        self._code = library.link(self._jit, f"hedgerow_{next(_names)}")

    def function(self, name: str, arguments: int) -> Callable[..., Any]:
        """A ctypes function of so many 64-bit words; calling it releases the GIL."""
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)
        return kind(self._code[name])


@cache
def _jit() -> Any:
    return llvm.create_lljit_compiler(use_jit_link=True)
