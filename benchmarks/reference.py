"""The oracle: sentence-transformers in fp32, in a process of its own, one sequence at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks import machine
from benchmarks.harness import Vectors
from benchmarks.machine import ROOT


def save_ragged(file: Path, sequences: Sequence[npt.NDArray[np.int32]]) -> None:
    """Keep sequences of token ids in one .npz: `ids` back to back and their `lengths`."""
    lengths = np.asarray([len(s) for s in sequences], np.int32)
    np.savez(file, ids=np.concatenate(list(sequences)).astype(np.int32), lengths=lengths)


def load_ragged(file: Path) -> list[npt.NDArray[np.int32]]:
    with np.load(file) as kept:
        ids, lengths = kept["ids"], kept["lengths"]
    return [np.asarray(part, np.int32) for part in np.split(ids, np.cumsum(lengths)[:-1])]


Job = tuple[Path, Sequence[npt.NDArray[np.int32]]]
"""A model folder and the sequences of token ids, specials included, that it must embed."""


def reference_vectors(jobs: Sequence[Job]) -> list[Vectors]:
    """For each job, float32 [n, dim]: what sentence-transformers gives for its sequences.

    Raises RuntimeError with the last line of the child that computes them.
    """
    with tempfile.TemporaryDirectory() as scratch:
        listed: list[list[str]] = []
        for number, (folder, sequences) in enumerate(jobs):
            inputs, out = Path(scratch) / f"{number}.npz", Path(scratch) / f"{number}.npy"
            save_ragged(inputs, sequences)
            listed.append([str(folder), str(inputs), str(out)])
        command = [sys.executable, "-m", "benchmarks.reference", json.dumps(listed)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"the reference vectors failed: {last}")
        return [np.load(out) for _, _, out in listed]


def _main(jobs: list[list[str]]) -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(machine.cores())
    for folder, inputs, out in jobs:
        model = SentenceTransformer(folder, device="cpu").float()
        rows: list[npt.NDArray[np.float32]] = []
        with torch.inference_mode():
            for sequence in load_ragged(Path(inputs)):
                ids = torch.from_numpy(sequence.astype(np.int64))[None]
                features = model({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
                rows.append(features["sentence_embedding"][0].float().numpy())
        np.save(out, np.stack(rows))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
