"""The engine's front door: models and settings in, running engines out. Imports no torch itself;
an executor that needs it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hedgerow_engine.device import open_device
from hedgerow_engine.engine import Engine
from hedgerow_engine.executor import Device
from hedgerow_engine.fingerprint import engine_fingerprint
from hedgerow_engine.hostmemory import check_memory
from hedgerow_engine.offers import is_quantized
from hedgerow_engine.settings import EngineSettings, ModelSpec
from hedgerow_engine.thread import EngineThread
from hedgerow_engine.vocabulary import check_vocabulary
from hedgerow_engine.waiter import Waiter
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import read_card

__all__ = ["EngineHost", "EngineSettings", "ModelSpec", "load_engines"]

Log = Callable[[str], None]


class EngineHost:
    """One device, its engine thread, and a loaded engine for each alias."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._thread = EngineThread(device)
        # Queries and bulk passes end in their own order each, so each has its waiter.
        self._waiters = None if device.synchronous else (Waiter(), Waiter())
        self._engines: dict[str, Engine] = {}
        self.engines: Mapping[str, Engine] = MappingProxyType(self._engines)

    @property
    def device_name(self) -> str:
        return self._device.name

    @property
    def alive(self) -> bool:
        """False once the engine thread ended: no step will ever be answered again."""
        return self._thread.alive

    @property
    def overtakes(self) -> bool:
        """A query started while bulk batches are queued runs before them; where the executor
        can pause between layers, before the rest of a running one too."""
        return True

    def load(self, spec: ModelSpec, settings: EngineSettings, log: Log) -> Engine:
        """Load one model on the engine thread. Raises StartupError of one line."""
        engine = self._thread.call(lambda: self._load(spec, settings, log))
        engine.prepare_while_idle()
        return engine

    def close(self) -> None:
        """Finish the queued batches and give the device back."""
        self._thread.stop_idling()
        # After everything queued, bulk too: executors give back what passes run on.
        self._thread.close([engine.close for engine in self._engines.values()])
        for waiter in self._waiters or ():
            waiter.close()
        self._device.close()

    def _load(self, spec: ModelSpec, settings: EngineSettings, log: Log) -> Engine:
        card = read_card(spec.folder, max_seq_len=spec.max_seq_len)
        weights = Weights.open(card.trunk)
        # A GPU's weights are counted against its own memory, by its device.
        check_memory(weights, settings.dtype if self._device.synchronous else None)
        check_vocabulary(card)
        executor = self._device.build(card, weights)
        waits = self._waiters
        engine = Engine(
            card,
            executor,
            self._thread,
            None if waits is None else waits[0].submit,
            bulk_waiter=None if waits is None else waits[1].submit,
            fingerprint=engine_fingerprint(card, weights, executor.dtype, executor.numerics),
            quantized=is_quantized(card),
        )
        executor.warm(settings.warmup_s)
        self._engines[spec.alias] = engine
        log(
            f"model {spec.alias}: {card.model_type}, {weights.num_bytes >> 20} MiB, "
            f"{executor.dtype} on {self._device.name} ({executor.name}), up to "
            f"{card.max_seq_len} tokens, fingerprint {engine.fingerprint}"
        )
        return engine


def load_engines(models: Sequence[ModelSpec], settings: EngineSettings, *, log: Log) -> EngineHost:
    """Open the device and load every model. Raises StartupError naming what to do."""
    host = EngineHost(open_device(settings, log))
    try:
        for spec in models:
            host.load(spec, settings, log)
    except BaseException:
        host.close()
        raise
    return host
