"""The models this gateway speaks for: alias -> card, tokenizer, limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hedgerow_gateway.templates import PairFrame, pair_frame
from hedgerow_gateway.tokenizer import Tokenizer, frame_tokenizer, open_tokenizer
from hedgerow_shared.errors import StartupError, UnknownModelError
from hedgerow_shared.modelcard import ModelCard, read_card
from hedgerow_shared.modelstore import ModelSource, locate, parse_max_seq_len, parse_model_flag
from hedgerow_shared.subjects import check_aliases, model_token


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One alias. fingerprint: of the gateway's half (tokenizer, prompts, lengths)."""

    alias: str
    card: ModelCard
    tokenizer: Tokenizer
    fingerprint: str
    frame: PairFrame | None = None
    framed: Tokenizer | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def token(self) -> str:
        """The alias as one subject token."""
        return model_token(self.alias)

    @property
    def limit(self) -> int:
        """Tokens a sequence may have, specials included."""
        return self.card.max_seq_len


class Models:
    """Aliases in the order of their flags; the first one serves requests that name none."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._by_alias: Mapping[str, ServedModel] = {m.alias: m for m in models}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_alias.values())

    @property
    def aliases(self) -> list[str]:
        return list(self._by_alias)

    @property
    def first(self) -> ServedModel:
        return next(iter(self._by_alias.values()))

    def get(self, alias: str | None) -> ServedModel:
        """Raises UnknownModelError that lists the aliases there are."""
        if alias is None:
            return self.first
        found = self._by_alias.get(alias)
        if found is None:
            raise UnknownModelError(
                f"no such model here; there is {', '.join(self._by_alias)}", param="model"
            )
        return found


def open_models(
    flags: Sequence[str], max_seq_len: Sequence[str], *, log: Callable[[str], None]
) -> Models:
    """Read every `--model`. Raises StartupError with one line that names the remedy."""
    sources = [parse_model_flag(flag) for flag in flags]
    if not sources:
        raise StartupError("no model: give --model ALIAS=PATH_OR_HUB_ID at least once")
    aliases = [source.alias for source in sources]
    check_aliases(aliases)
    limits = parse_max_seq_len(max_seq_len, aliases)
    return Models([_open(source, limits.get(source.alias), log) for source in sources])


def _open(source: ModelSource, max_seq_len: int | None, log: Callable[[str], None]) -> ServedModel:
    card = read_card(locate(source), max_seq_len=max_seq_len)
    frame = pair_frame(card)
    tokenizer = open_tokenizer(card, log=log)
    log(
        f"model {source.alias}: {card.folder} tokenizer={tokenizer.encoder.name} "
        f"max_tokens={card.max_seq_len} dimension={card.dimension}"
    )
    return ServedModel(
        alias=source.alias,
        card=card,
        tokenizer=tokenizer,
        fingerprint=card.gateway_fingerprint(),
        frame=frame,
        framed=frame_tokenizer(card, tokenizer, frame.head, frame.tail) if frame else None,
    )
