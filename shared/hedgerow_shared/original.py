"""Folders as their authors published them, which say less than sentence-transformers writes.

Qwen3-Reranker is a causal model without modules.json: that it ranks, and by which two words, is
said in its README only. The header of that file is data (the hub reads it, too); its prose is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hedgerow_shared.errors import StartupError
from hedgerow_shared.jsonfile import JsonObject

_HEADER_BYTES = 8192
_RANKS = re.compile(r"^pipeline_tag:\s*[\"']?text-ranking[\"']?\s*$", re.MULTILINE)
_YES, _NO = "yes", "no"


def yes_no_tokens(folder: Path, config: JsonObject) -> Mapping[str, Any] | None:
    """What a LogitScore module would say of a causal Qwen3 that its README calls a ranker:
    `true_token_id` and `false_token_id`. None for every other folder.

    Raises StartupError when its tokenizer has no such words.
    """
    if tuple(config.texts("architectures")) != ("Qwen3ForCausalLM",) or not _ranks(folder):
        return None
    file = folder / "tokenizer.json"
    vocab = JsonObject.read(file).section("model").mapping("vocab")
    ids = [vocab.get(word) for word in (_YES, _NO)]
    if not all(isinstance(i, int) for i in ids):
        raise StartupError(
            f"{file}: model.vocab has no {_YES!r} and {_NO!r}, by which {folder / 'README.md'} "
            "(pipeline_tag: text-ranking) is scored; add modules.json with a LogitScore module"
        )
    return {"true_token_id": ids[0], "false_token_id": ids[1]}


def _ranks(folder: Path) -> bool:
    try:
        with (folder / "README.md").open("rb") as stream:
            text = stream.read(_HEADER_BYTES).decode("utf-8", "replace")
    except OSError:
        return False
    start, _, rest = text.partition("---\n")
    return not start.strip() and bool(_RANKS.search(rest.partition("\n---")[0]))
