"""A model's tokenizer: an encoder, the model's special tokens, its limit, and a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hedgerow_gateway.tokenizer.assemble import Truncate, cut, pair_lengths, surround
from hedgerow_gateway.tokenizer.encoded import Encoded
from hedgerow_gateway.tokenizer.encoder import Encoder
from hedgerow_gateway.tokenizer.prefix import prefix_ids, worth_cutting
from hedgerow_gateway.tokenizer.specials import Specials
from hedgerow_shared.errors import BadInputError
from hedgerow_shared.ragged import TokenIds

Flags: TypeAlias = "npt.NDArray[np.bool_]"


class Tokenizer:
    """Turns texts into what the model gets. Callable from any thread.

    cuttable: a long text may be read only in part (`prefix`); False tokenizes everything
    """

    def __init__(self, encoder: Encoder, specials: Specials, cuttable: bool) -> None:
        self.encoder = encoder
        self.specials = specials
        self.cuttable = cuttable

    def encode(
        self, texts: Sequence[str], *, limit: int, truncate: Truncate = "end", prompt: str = ""
    ) -> Encoded:
        """Encode each `prompt + text`; ids never exceed `limit` unless truncate is "none".

        Raises BadInputError for a prompt that leaves no room for a text. With "none" nothing that
        fits is cut, and the caller compares `seen` with the limit; of
        a text that is far too long only so much is read as shows that it is.
        """
        budget = max(limit - self.specials.single, 1)
        if len(texts) == 1 and not prompt and len(texts[0]) < 2 * budget:
            short = self._short(texts, limit)
            if short is not None:
                return short
        if prompt:
            texts = [prompt + text for text in texts]
        prompt_ids = int(self.encoder.encode([prompt])[1][-1]) if prompt else 0
        if prompt_ids >= budget and truncate != "none":
            # Every text would be cut to the same prompt, and all vectors would be one.
            raise BadInputError(
                f"has {prompt_ids} tokens and a text with its prompt may have {budget}: nothing of "
                "the text would be left",
                param="prompt",
            )
        at_least = np.zeros(len(texts), np.bool_)
        ids, cu = self._bare(texts, 0 if truncate == "start" else budget, at_least)
        seen = np.diff(cu) + np.int32(self.specials.single)
        if truncate != "none":
            ids, cu = cut(ids, cu, budget, keep_start=truncate == "end", keep_head=prompt_ids)
        ids, cu = surround(ids, cu, self.specials.prefix, self.specials.suffix)
        prompt_len = np.zeros(0, np.int32)
        if prompt:
            most = np.diff(cu) - 1
            prompt_len = np.minimum(np.int32(prompt_ids + self.specials.prefix.shape[0]), most)
            prompt_len = np.maximum(prompt_len, 0).astype(np.int32)
        return Encoded(ids, cu, seen, at_least, prompt_len=prompt_len)

    def _short(self, texts: Sequence[str], limit: int) -> Encoded | None:
        """One short text, as queries are, without the array work of the general case; None
        when it does not fit after all (a character can be several tokens)."""
        specials = self.specials
        ids = np.concatenate((specials.prefix, self.encoder.encode(texts)[0], specials.suffix))
        count = ids.shape[0]
        if count > limit:
            return None
        cu, seen = np.array((0, count), np.int32), np.array((count,), np.int32)
        return Encoded(ids, cu, seen, np.zeros(1, np.bool_))

    def encode_pairs(
        self, first: str, seconds: Sequence[str], *, limit: int, truncate: Truncate = "end"
    ) -> Encoded:
        """Encode (first, second) for each second text, as the model's pair template says."""
        head = self.encoder.encode([first])[0]
        at_least = np.zeros(len(seconds), np.bool_)
        # A second text longer than the whole budget is cut to fit whatever the first one takes.
        budget = max(limit - self.specials.pair, 2)
        ids, cu = self._bare(seconds, 0 if truncate == "start" else budget, at_least)
        return self.pair_ids(head, ids, cu, limit=limit, truncate=truncate, at_least=at_least)

    def pair_ids(
        self,
        head: TokenIds,
        ids: TokenIds,
        cu: TokenIds,
        *,
        limit: int,
        truncate: Truncate = "end",
        at_least: Flags | None = None,
    ) -> Encoded:
        """Build pairs from bare ids: `head` with each text of (ids, cu)."""
        specials = self.specials
        budget = max(limit - specials.pair, 2)
        parts: list[TokenIds] = []
        lens: list[int] = []
        starts: list[int] = []
        seen = np.diff(cu) + np.int32(head.shape[0] + specials.pair)
        for start, stop in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
            a, b = head.shape[0], stop - start
            if truncate != "none":
                a, b = pair_lengths(a, b, budget)
            lead = head[:a] if truncate != "start" else head[head.shape[0] - a :]
            rest = ids[start : start + b] if truncate != "start" else ids[stop - b : stop]
            parts += [specials.pair_prefix, lead, specials.pair_middle, rest, specials.pair_suffix]
            lens.append(a + b + specials.pair)
            starts.append(a + specials.pair_prefix.shape[0] + specials.pair_middle.shape[0])
        out = np.zeros(len(lens) + 1, np.int32)
        np.cumsum(lens, out=out[1:])
        pair_start = np.array(starts if specials.typed else [], np.int32)
        flags = np.zeros(len(lens), np.bool_) if at_least is None else at_least
        return Encoded(np.concatenate(parts), out, seen, flags, pair_start)

    def _bare(
        self,
        texts: Sequence[str],
        budget: int,
        at_least: Flags,
    ) -> tuple[TokenIds, TokenIds]:
        """Ids without specials; texts far longer than `budget` ids are read only as far as
        needed, and flagged in `at_least`. budget 0 = read everything."""
        if not budget or not self.cuttable or not any(worth_cutting(t, budget) for t in texts):
            return self.encoder.encode(texts)
        parts: list[TokenIds] = []
        for i, text in enumerate(texts):
            ids, whole = prefix_ids(self.encoder, text, budget)
            parts.append(ids)
            at_least[i] = not whole
        cu = np.zeros(len(parts) + 1, np.int32)
        np.cumsum([part.shape[0] for part in parts], out=cu[1:])
        return np.concatenate(parts), cu
