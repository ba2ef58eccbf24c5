"""Request bodies -> requests. Every wrong field is named in one answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from hedgerow_gateway.bodies import kind_name
from hedgerow_gateway.fields import Fields, id_lists, looks_like_ids, one_ids, refuse_ids, texts
from hedgerow_gateway.models import Models, ServedModel
from hedgerow_gateway.templates import NO_PROMPT, Prompt, choose_prompt
from hedgerow_gateway.tokenizer.assemble import Truncate
from hedgerow_shared.errors import BadInputError

Encoding = Literal["float", "base64"]
ENCODINGS: tuple[Encoding, ...] = ("float", "base64")
TRUNCATES = ("none", "start", "end")


@dataclass(frozen=True, slots=True)
class Rules:
    """What this server was told to accept."""

    native_ids: bool = False
    max_inputs: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """`POST /v1/embeddings`. Either texts or ids holds the inputs."""

    model: ServedModel
    texts: list[str]
    ids: list[list[int]]
    encoding: Encoding
    dimensions: int | None
    truncate: Truncate
    prompt: Prompt

    @property
    def width(self) -> int:
        """Numbers in one vector of the answer."""
        return self.dimensions or self.model.card.dimension


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest:
    """`POST /rerank`. query and documents are texts, or token ids where those are enabled."""

    model: ServedModel
    query: str
    texts: list[str]
    query_ids: list[int]
    ids: list[list[int]]
    top_n: int
    return_documents: bool
    raw_scores: bool
    max_tokens_per_doc: int | None
    instruction: str | None
    truncate: Truncate


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """`POST /tokenize`."""

    model: ServedModel
    texts: list[str]
    truncate: Truncate
    prompt: Prompt


def read_embed(
    body: Mapping[str, Any], models: Models, rules: Rules, alias: str | None = None
) -> EmbedRequest:
    """alias: the model the subject names; the body may leave it out or must agree.

    Raises UnknownModelError, or BadInputError listing every wrong field.
    """
    fields = Fields(body)
    model = read_model(fields, models, alias)
    if model.card.is_scorer:
        raise BadInputError(
            "this model scores pairs and gives no embeddings: use /rerank", param="model"
        )
    found, ids = _inputs(fields, model, rules)
    encoding = fields.choice("encoding_format", ENCODINGS, "float")
    full = model.card.dimension
    dimensions = fields.whole("dimensions", 1, full, f"the model gives {full} numbers")
    prompt = read_prompt(fields, model)
    truncate = read_truncate(fields)
    fields.check()
    return EmbedRequest(
        model=model,
        texts=found,
        ids=ids,
        encoding=cast("Encoding", encoding),
        dimensions=dimensions,
        truncate=truncate,
        prompt=prompt,
    )


def read_rerank(
    body: Mapping[str, Any], models: Models, rules: Rules, alias: str | None = None
) -> RerankRequest:
    """Raises like `read_embed`."""
    fields = Fields(body)
    model = read_model(fields, models, alias)
    if model.card.num_labels > 1:
        raise BadInputError(
            f"this model gives {model.card.num_labels} labels, not one score", param="model"
        )
    query, query_ids, documents, ids = "", [], [], []
    if _ids_query(body.get("query"), rules):
        query_ids, ids = _rerank_ids(fields, model, rules)
    else:
        query = fields.text("query") or ""
        if not query and not fields.problems:
            fields.bad("query", "must be text that is not empty")
        documents = texts(
            fields,
            "documents",
            _bare(body.get("documents")),
            rules.max_inputs,
            an_object="an object without `text`",
        )
    top_n = fields.whole("top_n", 0, 2**31, "0 means all")
    per_doc = fields.whole("max_tokens_per_doc", 4, 2**31, "tokens")
    if per_doc is not None and model.card.is_scorer:
        fields.bad("max_tokens_per_doc", "is for models that embed query and documents apart")
    request = RerankRequest(
        model=model,
        query=query,
        texts=documents,
        query_ids=query_ids,
        ids=ids,
        top_n=top_n or len(documents) or len(ids),
        return_documents=fields.flag("return_documents"),
        raw_scores=fields.flag("raw_scores"),
        max_tokens_per_doc=per_doc,
        instruction=fields.text("instruction"),
        truncate=read_truncate(fields),
    )
    fields.check()
    return request


def read_tokenize(
    body: Mapping[str, Any], models: Models, rules: Rules, alias: str | None = None
) -> TokenizeRequest:
    """Raises like `read_embed`."""
    fields = Fields(body)
    model = read_model(fields, models, alias)
    found, ids = _inputs(fields, model, rules)
    if ids:
        fields.bad("input", "holds token ids already: send text to see what becomes of it")
    prompt, truncate = read_prompt(fields, model), read_truncate(fields)
    fields.check()
    return TokenizeRequest(model=model, texts=found, truncate=truncate, prompt=prompt)


def read_model(fields: Fields, models: Models, alias: str | None) -> ServedModel:
    named = fields.text("model")
    fields.check()
    model = models.get(alias if named is None else named)
    if alias is not None and model.alias != alias:
        raise BadInputError(f"the subject names {alias}: leave `model` out", param="model")
    return model


def _inputs(fields: Fields, model: ServedModel, rules: Rules) -> tuple[list[str], list[list[int]]]:
    value = fields.body.get("input")
    if isinstance(value, str):
        if not value:
            fields.bad("input", "is empty")
        return [value], []
    if value is None:
        fields.bad("input", "is required: text, or a list of texts")
        return [], []
    if looks_like_ids(value):
        if not rules.native_ids:
            refuse_ids(fields, "input")
            return [], []
        if not isinstance(value[0], list):
            one_ids(fields, "input", value, model.card.vocab_size)
            return [], [value]
        return [], id_lists(fields, "input", value, model.card.vocab_size, rules.max_inputs)
    return texts(fields, "input", value, rules.max_inputs), []


def _rerank_ids(
    fields: Fields, model: ServedModel, rules: Rules
) -> tuple[list[int], list[list[int]]]:
    if not rules.native_ids:
        refuse_ids(fields, "query")
        return [], []
    query, documents = fields.body["query"], fields.body.get("documents")
    vocab = model.card.vocab_size
    one_ids(fields, "query", query, vocab)
    if not isinstance(documents, list) or not documents:
        fields.bad("documents", "must be a list of lists of token ids, like the query")
        return [], []
    return query, id_lists(fields, "documents", documents, vocab, rules.max_inputs)


def _ids_query(query: Any, rules: Rules) -> bool:
    """True for a query of token ids, and for any list where such queries are taken."""
    return isinstance(query, list) and (rules.native_ids or looks_like_ids(query))


def _bare(documents: Any) -> Any:
    """Cohere and Jina also take documents as {"text": ...}; an object without it stays one."""
    if not isinstance(documents, list) or not any(isinstance(d, dict) for d in documents):
        return documents
    return [
        d["text"] if isinstance(d, dict) and d.get("text") is not None else d for d in documents
    ]


def read_prompt(fields: Fields, model: ServedModel) -> Prompt:
    name, kind, text = (fields.text(n) for n in ("prompt_name", "input_type", "prompt"))
    try:
        return choose_prompt(model.card, name=name, input_type=kind, text=text)
    except BadInputError as error:
        fields.problems.extend(error.problems)
        return NO_PROMPT


def read_truncate(fields: Fields) -> Truncate:
    value = fields.body.get("truncate")
    if isinstance(value, bool):
        return "end" if value else "none"
    if value is not None and not isinstance(value, str):
        fields.bad("truncate", f"must be NONE, START or END, found {kind_name(value)}")
        return "end"
    return cast("Truncate", fields.choice("truncate", TRUNCATES, "end"))
