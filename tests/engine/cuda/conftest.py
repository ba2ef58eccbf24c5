"""Models on a rehearsed card: host tensors behind a stream that runs when the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow_engine.device.cuda.device import CudaDevice
from hedgerow_engine.device.cuda.executor import CudaExecutor
from hedgerow_engine.device.cuda.rehearsal import Rehearsal
from hedgerow_engine.engine import Engine
from hedgerow_engine.layers.kernels.twins import TorchKernels
from hedgerow_engine.load import EngineHost, EngineSettings, ModelSpec
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import read_card
from hedgerow_shared.ragged import RaggedBatch
from tests.engine.tiny import save, seeded, transformers, write_modules

VOCAB = 90
POISON = 7
Log = list[str]


def settings(**changes: Any) -> EngineSettings:
    plain = {"dtype": "float32", "warmup_s": 0.0, "graph_hits": "", "graph_inflection": 8192}
    return EngineSettings(**(plain | changes))


def rehearsed(card: Rehearsal, chosen: EngineSettings, log: Log) -> CudaDevice:
    return CudaDevice(card, chosen, log.append, installed=frozenset({"sdpa"}), fused=TorchKernels())


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers whose row for token POISON is not a number."""
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=300,
        pad_token_id=1,
    )
    model = seeded(transformers.BertModel, config)
    model.embeddings.word_embeddings.weight.data[POISON] = float("nan")
    folder = save(tmp_path_factory.mktemp("cuda") / "tiny", model)
    write_modules(folder, "Transformer", "Pooling", "Normalize")
    return folder


OpenExecutor = Callable[..., CudaExecutor]


@pytest.fixture
def open_executor(tiny_folder: Path) -> OpenExecutor:
    """open_executor(card, log=[], **settings) -> CudaExecutor, on the calling thread."""

    def open_one(card: Rehearsal, *, log: Log | None = None, **changes: Any) -> CudaExecutor:
        device = rehearsed(card, settings(**changes), [] if log is None else log)
        return device.build(read_card(tiny_folder), Weights.open(tiny_folder))

    return open_one


OpenRehearsed = Callable[..., Engine]


@pytest.fixture
def open_rehearsed(tiny_folder: Path) -> Iterator[OpenRehearsed]:
    """open_rehearsed(card, folder=tiny, log=[], **settings) -> Engine with its threads."""
    hosts: list[EngineHost] = []

    def open_one(
        card: Rehearsal, folder: Path = tiny_folder, *, log: Log | None = None, **changes: Any
    ) -> Engine:
        chosen = settings(**changes)
        host = EngineHost(rehearsed(card, chosen, [] if log is None else log))
        hosts.append(host)
        return host.load(ModelSpec(alias="m", folder=folder), chosen, lambda line: None)

    yield open_one
    for host in hosts:
        host.close()


def batch_of(rng: np.random.Generator, *lengths: int) -> RaggedBatch:
    """Random tokens, none of them poisonous."""
    return RaggedBatch.of([rng.integers(8, VOCAB, n).tolist() for n in lengths])
