"""Settings of late interaction (ColBERT) that change vectors and that nothing here computes.

sentence-transformers keeps them in the Transformer's file and in MultiVectorMask's; PyLate keeps
its own in config_sentence_transformers.json. All but the neutral ones are refused: a folder that
pads its queries with mask tokens, or drops punctuation, gives other vectors than a plain pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow_shared.errors import StartupError
from hedgerow_shared.jsonfile import JsonObject
from hedgerow_shared.modules import Module, ends_with_normalize, on_tokens

_LENGTHS = ("query_length", "document_length")
_MASKS = ("skiplist_words", "keep_only_token_ids")
_PREFIXES = ("query_prefix", "document_prefix")
# Any of these keys makes sentence-transformers take a folder for one of PyLate's, whose queries
# are padded unless it says otherwise.
_OF_PYLATE = (
    *_LENGTHS,
    *_PREFIXES,
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "attend_to_mask_tokens",
    "skiplist_words",
)


def check_late_settings(
    modules: Sequence[Module], st: JsonObject, sbert: JsonObject, max_seq_len: int
) -> None:
    """st: config_sentence_transformers.json; sbert: the Transformer's own settings. Raises
    StartupError naming file and key."""
    _check_lengths(sbert, max_seq_len)
    _only_empty(sbert, "query_expansion")
    for module in modules:
        if module.kind == "token_mask":
            _only_empty(module.json, *_MASKS)
    if on_tokens(modules):
        _check_pylate(st, max_seq_len)


def normalizes(modules: Sequence[Module], st: JsonObject) -> bool:
    """True for vectors of length 1. Without a Normalize that is so for token vectors, too, unless
    sentence-transformers itself wrote the folder: PyLate does it in its code."""
    if ends_with_normalize(modules):
        return True
    return on_tokens(modules) and st.maybe_text("model_type") != "MultiVectorEncoder"


def _check_pylate(st: JsonObject, max_seq_len: int) -> None:
    _only_empty(st, *_PREFIXES, "query_expansion", "skiplist_words")
    _check_lengths(st, max_seq_len)
    of_pylate = st.values.get("model_type") == "ColBERT"
    if of_pylate and st.values.get("skiplist_words") is None:
        raise st.wrong("skiplist_words", "[], as PyLate drops punctuation where there is no list")
    expands = "query_expansion" not in st.values and any(k in st.values for k in _OF_PYLATE)
    if expands and st.flag("do_query_expansion", True):
        raise st.wrong("do_query_expansion", "false: queries are not padded with mask tokens here")


def _check_lengths(settings: JsonObject, max_seq_len: int) -> None:
    """A length that cuts nothing is neutral."""
    for key in _LENGTHS:
        length = settings.maybe_whole(key)
        if length is not None and length < max_seq_len:
            wanted = f"absent or {max_seq_len} or more, as queries and documents are cut alike here"
            raise settings.wrong(key, wanted)


def _only_empty(settings: JsonObject, *keys: str) -> None:
    for key in keys:
        if settings.values.get(key) not in (None, "", [], {}):
            raise StartupError(
                f"{settings.file}: {key} is {settings.values[key]!r}; it must be absent or empty, "
                "as token vectors are computed without it here"
            )
