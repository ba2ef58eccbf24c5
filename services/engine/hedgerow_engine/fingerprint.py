"""The engine's half of a model's fingerprint: two workers with the same one may share a fleet.

Hashed: every tensor's name, dtype and shape, the first 4 KiB and the last 4 KiB of its bytes,
config.json less what changes no number, the module list, the pooling, the dtype of the
products and the numerics class. Sampling makes it a matter of milliseconds for any size; two
checkpoints that agree in the ends of all tensors and differ only inside would be taken for the
same (docs/decisions/0031).
"""

from __future__ import annotations

import hashlib
import json

from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard

_SAMPLE_BYTES = 4096
_NO_NUMBERS = frozenset(
    {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}
)


def engine_fingerprint(card: ModelCard, weights: Weights, dtype: str, numerics: str) -> str:
    """12 hex digits."""
    digest = hashlib.sha256()
    for raw in weights.tensors:
        digest.update(f"{raw.name} {raw.dtype} {raw.shape}\n".encode())
        flat = raw.data.reshape(-1).view("u1")
        digest.update(flat[:_SAMPLE_BYTES].tobytes())
        digest.update(flat[-_SAMPLE_BYTES:].tobytes())
    rest = {
        "config": {k: v for k, v in card.config.items() if k not in _NO_NUMBERS},
        "modules": [[m.kind, dict(m.config)] for m in card.modules],
        "pooling": [card.pooling.modes, card.pooling.include_prompt],
        "normalize": card.normalize,
        "dtype": dtype,
        "numerics": numerics,
    }
    digest.update(json.dumps(rest, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:12]
