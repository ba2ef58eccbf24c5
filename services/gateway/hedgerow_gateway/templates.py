"""What is put around a user's text before it is tokenized: prompts by name, and pair templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hedgerow_shared.errors import BadInputError, StartupError
from hedgerow_shared.modelcard import ModelCard

# What other APIs call an input type, and the prompt names under which model cards keep it.
_INPUT_TYPES: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "search_query", "retrieval.query"),
    "search_query": ("query", "search_query", "retrieval.query"),
    "document": ("document", "passage", "search_document", "retrieval.passage"),
    "search_document": ("document", "passage", "search_document", "retrieval.passage"),
    "passage": ("document", "passage", "search_document", "retrieval.passage"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text put before every input. name: as in the model's card; "custom" for the caller's own."""

    name: str | None = None
    text: str = ""


NO_PROMPT = Prompt()


def choose_prompt(
    card: ModelCard, *, name: str | None, input_type: str | None, text: str | None
) -> Prompt:
    """The prompt a request asks for: by name, by input type, by its text, or the card's default.

    Raises BadInputError naming the field and what it may be.
    """
    given = [
        f for f, v in (("prompt_name", name), ("input_type", input_type), ("prompt", text)) if v
    ]
    if len(given) > 1:
        raise BadInputError(f"give one of {' and '.join(given)}, not both", param=given[1])
    if text:
        return Prompt("custom", text)
    if name:
        if name not in card.prompts:
            raise BadInputError(f"no such prompt: {_known(card)}", param="prompt_name")
        return Prompt(name, card.prompts[name])
    if input_type:
        return _by_type(card, input_type)
    default = card.default_prompt
    if text is None and default is not None and default in card.prompts:
        return Prompt(default, card.prompts[default])
    return NO_PROMPT


def prompt_for(card: ModelCard, input_type: str) -> Prompt:
    """The card's prompt for "query" or "document"; none where it has none."""
    return next(
        (Prompt(n, card.prompts[n]) for n in _INPUT_TYPES[input_type] if n in card.prompts),
        NO_PROMPT,
    )


def _by_type(card: ModelCard, input_type: str) -> Prompt:
    if input_type in _INPUT_TYPES:
        return prompt_for(card, input_type)
    if input_type in card.prompts:
        return Prompt(input_type, card.prompts[input_type])
    allowed = ", ".join([*_INPUT_TYPES, *(p for p in card.prompts if p not in _INPUT_TYPES)])
    raise BadInputError(f"unknown input type; it may be {allowed}", param="input_type")


def _known(card: ModelCard) -> str:
    if not card.prompts:
        return "this model has no prompts"
    return f"this model has {', '.join(sorted(card.prompts))}"


@dataclass(frozen=True, slots=True)
class PairFrame:
    """How a causal reranker reads a pair: control text, a body, control text.

    head and tail hold control tokens and are tokenized as such; the body is text, so that a
    document cannot close the conversation it is quoted in.
    """

    head: str
    tail: str
    instruction: str

    def body(self, query: str, document: str, instruction: str | None) -> str:
        """The text between head and tail."""
        task = instruction or self.instruction
        return f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}"


# The form Qwen3-Reranker was trained with (its model card).
_QWEN3 = PairFrame(
    head=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n"
    ),
    tail="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)


def pair_frame(card: ModelCard) -> PairFrame | None:
    """The frame of a model scored by its yes/no logits; None for an ordinary cross-encoder.

    Raises StartupError for a family whose frame is not known here.
    """
    if not any(module.kind == "logit_score" for module in card.modules):
        return None
    if card.model_type == "qwen3":
        return _QWEN3
    raise StartupError(
        f"{card.folder / 'modules.json'}: LogitScore on model_type {card.model_type!r} is not "
        "supported; known is qwen3"
    )
