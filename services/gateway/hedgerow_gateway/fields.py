"""Reading a body field by field, collecting every problem before complaining once."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hedgerow_gateway.bodies import MAX_PROBLEMS, kind_name
from hedgerow_shared.errors import BadInputError, Problem, TokenIdsError


class Fields:
    """A request body. Readers return a usable value and note what was wrong; `check` raises.

    An absent field and null are the same, because several SDKs send nulls. Unknown fields are
    ignored: clients of many APIs send their own extras.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body
        self.problems: list[Problem] = []
        self.kind: type[BadInputError] = BadInputError

    def bad(self, param: str, message: str) -> None:
        self.problems.append(Problem(param, message))

    def check(self) -> None:
        """Raise one BadInputError with all problems noted so far (the first hundred)."""
        if not self.problems:
            return
        left = len(self.problems) - MAX_PROBLEMS
        shown = self.problems[:MAX_PROBLEMS]
        if left > 0:
            shown.append(Problem(None, f"and {left} more"))
        raise self.kind(shown)

    def text(self, name: str) -> str | None:
        value = self.body.get(name)
        if value is None or isinstance(value, str):
            return value
        self.bad(name, f"must be text, found {kind_name(value)}")
        return None

    def choice(self, name: str, allowed: Collection[str], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in allowed:
            self.bad(name, f"must be one of {', '.join(allowed)}, found {shown(value)}")
            return default
        return value.lower()

    def flag(self, name: str) -> bool:
        value = self.body.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.bad(name, f"must be true or false, found {kind_name(value)}")
        return False

    def whole(self, name: str, low: int, high: int, why: str) -> int | None:
        """A whole number between low and high; `why` says where the bound comes from.

        2.0 is one too: some languages know no other numbers.
        """
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, float):
            self.bad(name, f"must be a whole number, found {value}")
        elif isinstance(value, bool) or not isinstance(value, int):
            self.bad(name, f"must be a whole number, found {kind_name(value)}")
        elif not low <= value <= high:
            self.bad(name, f"must be between {low} and {high} ({why}), found {shown(value)}")
        else:
            return value
        return None


def shown(value: Any) -> str:
    """A caller's own value as an error quotes it: short, on one line."""
    try:
        text = json.dumps(value)
    except ValueError:  # a number of thousands of digits
        return "a number of very many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 60


def texts(
    fields: Fields, name: str, value: Any, max_inputs: int, *, an_object: str = "an object"
) -> list[str]:
    """A list of texts, none of them empty; notes every item that is something else.

    an_object: what an object among them is called
    """
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else kind_name(value)
        fields.bad(name, f"must be a list of texts, found {found}")
        return []
    if _too_many(fields, name, value, max_inputs):
        return []
    if set(map(type, value)) == {str} and "" not in value:
        return value
    for i, item in enumerate(value):
        if not isinstance(item, str):
            found = an_object if isinstance(item, dict) else kind_name(item)
            fields.bad(f"{name}[{i}]", f"must be text, found {found}")
        elif not item:
            fields.bad(f"{name}[{i}]", "is empty")
    return []


def id_lists(
    fields: Fields, name: str, value: Sequence[Any], vocab_size: int, max_inputs: int
) -> list[list[int]]:
    """A list of non-empty lists of token ids of this model's vocabulary."""
    if _too_many(fields, name, value, max_inputs):
        return []
    before = len(fields.problems)
    for i, item in enumerate(value):
        one_ids(fields, f"{name}[{i}]", item, vocab_size)
    return list(value) if len(fields.problems) == before else []


def one_ids(fields: Fields, path: str, value: Any, vocab_size: int) -> None:
    """Note what is wrong with one sequence of token ids."""
    if not isinstance(value, list):
        fields.bad(path, f"must be a list of token ids, found {kind_name(value)}")
    elif not value:
        fields.bad(path, "is empty")
    elif set(map(type, value)) != {int}:
        at = next(i for i, v in enumerate(value) if type(v) is not int)
        fields.bad(f"{path}[{at}]", f"must be a token id, found {kind_name(value[at])}")
    elif min(value) < 0 or max(value) >= vocab_size:
        at = next(i for i, v in enumerate(value) if not 0 <= v < vocab_size)
        fields.bad(f"{path}[{at}]", f"token ids of this model are 0 to {vocab_size - 1}")


def refuse_ids(fields: Fields, name: str) -> None:
    """Note that token ids are not taken, and how to go on."""
    fields.kind = TokenIdsError
    fields.bad(
        name,
        "holds token ids, and ids of another model's vocabulary would give wrong vectors: send "
        "text. LangChain's OpenAIEmbeddings sends cl100k ids unless it is made with "
        "check_embedding_ctx_length=False. For ids of this very model, start the server with "
        "--token-ids native",
    )


def looks_like_ids(value: Any) -> bool:
    """True for [1, 2] and [[1, 2], [3]]: whole numbers or lists, and no text among them."""
    if not isinstance(value, list) or not value:
        return False
    kinds = set(map(type, value))
    return type(value[0]) in (int, list) and str not in kinds and kinds <= {int, list, bool}


def _too_many(fields: Fields, name: str, value: Sequence[Any], max_inputs: int) -> bool:
    if len(value) <= max_inputs:
        return False
    fields.bad(name, f"holds {len(value)} items; the limit is {max_inputs} (--max-inputs)")
    return True
