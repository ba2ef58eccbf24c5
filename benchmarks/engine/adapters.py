"""How each engine is loaded and asked: token ids of several sequences in, unit vectors out.

Every adapter imports its library when it is opened. Engines that need rectangles get what
sentence-transformers gives them: sorted by length, batches of 32, padded to the longest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Sequences = Sequence[npt.NDArray[np.int32]]
Vectors = npt.NDArray[np.float32]

RECTANGLE = 32
PASS_TOKENS = 512


class Adapter(Protocol):
    """One loaded engine. `facts` go into the rows: versions, dtype, which executor ran."""

    @property
    def facts(self) -> Mapping[str, str]: ...

    def embed(self, sequences: Sequences) -> Vectors: ...


def open_adapter(ask: Mapping[str, Any]) -> Adapter:
    """Build the adapter named by `ask["engine"]`. Raises what its library raises."""
    return _ADAPTERS[ask["engine"]](**{k: v for k, v in ask.items() if k != "engine"})


def rectangles(sequences: Sequences) -> Iterator[tuple[list[int], Any, Any]]:
    """(indices, ids int64 [b, n], mask int64 [b, n]) of batches sorted by length."""
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    for start in range(0, len(order), RECTANGLE):
        chosen = order[start : start + RECTANGLE]
        longest = len(sequences[chosen[0]])
        ids = np.zeros((len(chosen), longest), np.int64)
        mask = np.zeros((len(chosen), longest), np.int64)
        for row, index in enumerate(chosen):
            ids[row, : len(sequences[index])] = sequences[index]
            mask[row, : len(sequences[index])] = 1
        yield chosen, ids, mask


def passes(sequences: Sequences, tokens: int) -> list[list[int]]:
    """Indices of the sequences of each ragged pass: in order of length, filled to `tokens`."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    found: list[list[int]] = []
    filled = tokens
    for index in order:
        if filled >= tokens:
            found.append([])
            filled = 0
        found[-1].append(index)
        filled += len(sequences[index])
    return found


class Hedgerow:
    """Ours, through the engine's front door. Two passes are kept in flight, as a worker does."""

    def __init__(
        self,
        model: str,
        threads: int,
        executor: str = "auto",
        dtype: str = "auto",
        length: int | None = None,
    ) -> None:
        from hedgerow_engine.load import EngineSettings, ModelSpec, load_engines
        from hedgerow_shared.modelcard import read_card
        from hedgerow_shared.ragged import Lane, RaggedBatch

        settings = EngineSettings(
            device="cpu",
            dtype=dtype,  # pyright: ignore[reportArgumentType]
            threads=threads,
            cpu_executor=executor,  # pyright: ignore[reportArgumentType]
        )
        said: list[str] = []
        # Without a wish: the longest the weights allow, as the oracle has no cap either.
        length = length or read_card(Path(model)).max_positions
        spec = ModelSpec(alias="model", folder=Path(model), max_seq_len=length)
        self._host = load_engines([spec], settings, log=said.append)
        self._engine = self._host.engines["model"]
        self._batch_of, self._lane = RaggedBatch.of, Lane
        name = getattr(self._engine, "executor_name", "")
        if executor not in ("auto", "") and executor not in f"{name} {' '.join(said)}":
            raise RuntimeError(f"asked for {executor}, got {name or 'another executor'}")
        self.facts = {"dtype": self._engine.dtype, "executor": name or executor}

    def embed(self, sequences: Sequences) -> Vectors:
        if len(sequences) == 1:
            return self._one(sequences[0])
        rows: list[Any] = [None] * len(sequences)
        flying: list[tuple[list[int], Any]] = []
        for chosen in passes(sequences, PASS_TOKENS):
            batch = self._batch_of([sequences[i] for i in chosen])
            flying.append((chosen, self._engine.step(batch, self._lane.BULK)))
            if len(flying) == 2:
                _settle(*flying.pop(0), rows)
        for chosen, lazy in flying:
            _settle(chosen, lazy, rows)
        return np.stack(rows)

    def _one(self, sequence: npt.NDArray[np.int32]) -> Vectors:
        lazy = self._engine.step(self._batch_of([sequence]), self._lane.QUERY)
        row = lazy.result().rows[0]
        if isinstance(row, Exception):
            raise row
        vector = np.array(row[0], np.float32)[None]
        lazy.release()
        return vector


def _settle(chosen: list[int], lazy: Any, rows: list[Any]) -> None:
    for index, row in zip(chosen, lazy.result().rows, strict=True):
        if isinstance(row, Exception):
            raise row
        rows[index] = np.array(row[0], np.float32)
    lazy.release()


class _Rectangular:
    """Shared half of the engines that take padded batches: `_run(ids, mask) -> [b, dim]`."""

    facts: Mapping[str, str]
    _run: Callable[[Any, Any], Any]

    def embed(self, sequences: Sequences) -> Vectors:
        rows: list[Any] = [None] * len(sequences)
        for chosen, ids, mask in rectangles(sequences):
            for index, vector in zip(chosen, self._run(ids, mask), strict=True):
                rows[index] = vector
        return np.stack(rows)


class Transformers(_Rectangular):
    """transformers eager, pooled and normalised by hand."""

    def __init__(self, model: str, threads: int, dtype: str, pooling: str = "mean") -> None:
        import torch
        from transformers import AutoModel

        torch.set_num_threads(threads)
        self._torch, self._pooling = torch, pooling
        self._model = AutoModel.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self.facts = {
            "dtype": dtype,
            "torch": torch.__version__,
            "transformers": version("transformers"),
        }

    def _run(self, ids: Any, mask: Any) -> Any:
        torch = self._torch
        with torch.inference_mode():
            mask = torch.from_numpy(mask)
            hidden = self._model(input_ids=torch.from_numpy(ids), attention_mask=mask)
            hidden = hidden.last_hidden_state.float()
            if self._pooling == "mean":
                kept = mask[..., None].float()
                pooled = (hidden * kept).sum(1) / kept.sum(1)
            else:
                pooled = hidden[torch.arange(len(ids)), mask.sum(1) - 1]
            return torch.nn.functional.normalize(pooled, dim=-1).numpy()


class SentenceTransformers(_Rectangular):
    """sentence-transformers' own module chain on token ids."""

    def __init__(self, model: str, threads: int, dtype: str) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = SentenceTransformer(model, device="cpu").to(getattr(torch, dtype))
        self.facts = {
            "dtype": dtype,
            "torch": torch.__version__,
            "sentence-transformers": version("sentence-transformers"),
        }

    def _run(self, ids: Any, mask: Any) -> Any:
        torch = self._torch
        with torch.inference_mode():
            features = {
                "input_ids": torch.from_numpy(ids),
                "attention_mask": torch.from_numpy(mask),
            }
            return self._model(features)["sentence_embedding"].float().numpy()


class OnnxRuntime(_Rectangular):
    """ONNX Runtime on the graph `benchmarks/peers/export_onnx.py` wrote, pooling inside it."""

    def __init__(self, graph: str, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(graph, options, providers=providers)
        self.facts = {"dtype": "float32", "onnxruntime": onnxruntime.__version__}

    def _run(self, ids: Any, mask: Any) -> Any:
        return self._session.run(None, {"input_ids": ids, "attention_mask": mask})[0]


class OpenVino(_Rectangular):
    """OpenVINO's CPU plug-in on the exported graph, set for latency."""

    def __init__(self, graph: str, threads: int, dtype: str) -> None:
        import openvino

        precision = {"float32": "f32", "bfloat16": "bf16"}[dtype]
        options = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
        options["INFERENCE_NUM_THREADS"] = str(threads)
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(graph), "CPU", options)
        self._request = compiled.create_infer_request()
        release = openvino.__version__.split("-")[0]
        self.facts = {"dtype": dtype, "openvino": release}

    def _run(self, ids: Any, mask: Any) -> Any:
        answer = self._request.infer({"input_ids": ids, "attention_mask": mask})
        return np.array(next(iter(answer.values())))


class Gemm:
    """No engine: the matrix products of a model, as fast as oneDNN runs them. The floor."""

    def __init__(self, threads: int, dtype: str) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch, self._dtype = torch, getattr(torch, dtype)
        self.facts = {"dtype": dtype, "torch": torch.__version__}

    def embed(self, sequences: Sequences) -> Vectors:
        raise NotImplementedError("the GEMM floor embeds nothing")

    def gflops(self, rows: int, inner: int, columns: int, seconds: float) -> float:
        """Sustained GFLOP/s of [rows, inner] x [inner, columns] with a weight packed ahead."""
        torch = self._torch
        x = torch.randn(rows, inner).to(self._dtype)
        weight = torch.randn(columns, inner).to(self._dtype)
        with torch.inference_mode():
            product = self._product(x, weight)
            product()
            count, start = 0, time.perf_counter()
            while (spent := time.perf_counter() - start) < seconds:
                product()
                count += 1
        return 2e-9 * rows * inner * columns * count / spent

    def _product(self, x: Any, weight: Any) -> Callable[[], Any]:
        torch = self._torch
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, x.shape[0])
            run = torch.ops.mkldnn._linear_pointwise.default
            run(x, packed, None, "none", [], "")
            return lambda: run(x, packed, None, "none", [], "")
        except (AttributeError, RuntimeError):  # a torch without oneDNN's packed operators
            return lambda: torch.nn.functional.linear(x, weight)


_ADAPTERS: Mapping[str, Callable[..., Adapter]] = {
    "hedgerow": Hedgerow,
    "transformers": Transformers,
    "sentence-transformers": SentenceTransformers,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "gemm": Gemm,
}
