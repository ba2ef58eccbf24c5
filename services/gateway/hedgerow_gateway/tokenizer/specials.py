"""The tokens a model wants around a text or a pair, learned from its own post-processor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import orjson

from hedgerow_gateway.tokenizer.file import TokenizerFile
from hedgerow_gateway.tokenizer.hf import HfEncoder
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import TokenIds

_PROBES = (("a", "b"), ("1", "2"), ("one", "two"))


def _no_ids() -> TokenIds:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Specials:
    """Ids before and after one text; before, between and after the two texts of a pair.

    typed: the second text of a pair has token type 1 (BERT); False where the model knows one type
    """

    prefix: TokenIds = field(default_factory=_no_ids)
    suffix: TokenIds = field(default_factory=_no_ids)
    pair_prefix: TokenIds = field(default_factory=_no_ids)
    pair_middle: TokenIds = field(default_factory=_no_ids)
    pair_suffix: TokenIds = field(default_factory=_no_ids)
    typed: bool = False

    @property
    def single(self) -> int:
        """Tokens added to one text."""
        return self.prefix.shape[0] + self.suffix.shape[0]

    @property
    def pair(self) -> int:
        """Tokens added to a pair of texts."""
        return self.pair_prefix.shape[0] + self.pair_middle.shape[0] + self.pair_suffix.shape[0]


def read_specials(file: TokenizerFile, encoder: HfEncoder, card: ModelCard) -> Specials:
    """Probe the post-processor, then add the end token where the file forgot it.

    A last-token model is read at its last position, which must be the end token it was trained
    with. Files of that family are in circulation whose post-processor adds none
    (GTE-Qwen2, base Qwen files), so then the end token of config.json is appended.
    """
    found = _probe(file, encoder)
    if card.token_types < 2:
        found = replace(found, typed=False)
    end = _end_token(card)
    if end is None or found.suffix.shape[0]:
        return found
    suffix = np.array([end], np.int32)
    return replace(found, suffix=suffix, pair_suffix=np.append(found.pair_suffix, suffix))


def _probe(file: TokenizerFile, encoder: HfEncoder) -> Specials:
    library = encoder.library
    for first, second in _PROBES:
        a = library.encode(first, add_special_tokens=False).ids
        b = library.encode(second, add_special_tokens=False).ids
        single, pair = library.encode(first).ids, library.encode(first, second)
        at = _find(single, a, 0)
        pair_a = _find(pair.ids, a, 0)
        pair_b = -1 if pair_a < 0 else _find(pair.ids, b, pair_a + len(a))
        if not a or not b or at < 0 or pair_b < 0:
            continue
        return Specials(
            _ids(single[:at]),
            _ids(single[at + len(a) :]),
            _ids(pair.ids[:pair_a]),
            _ids(pair.ids[pair_a + len(a) : pair_b]),
            _ids(pair.ids[pair_b + len(b) :]),
            pair.type_ids[pair_b] == 1,
        )
    raise StartupError(
        f"{file.path}: post_processor changes the text's own tokens; that is not supported"
    )


def _end_token(card: ModelCard) -> int | None:
    if "lasttoken" not in card.pooling.modes or card.is_scorer:
        return None
    if not any(module.kind == "pooling" for module in card.modules):
        return None
    end = card.config.get("eos_token_id")
    end = end[0] if isinstance(end, list) and end else end
    file = card.trunk / "tokenizer_config.json"
    if end is None and file.is_file():
        wanted = orjson.loads(file.read_bytes()).get("eos_token_id")
        end = wanted if isinstance(wanted, int) else None
    return end if isinstance(end, int) else None


def _find(ids: list[int], part: list[int], start: int) -> int:
    for at in range(start, len(ids) - len(part) + 1):
        if ids[at : at + len(part)] == part:
            return at
    return -1


def _ids(ids: list[int]) -> TokenIds:
    return np.array(ids, np.int32)
