"""The official openai package, unchanged, against our /v1."""

from __future__ import annotations

import numpy as np
import openai
import pytest

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as found:
        yield found


def test_one_text_and_several_give_vectors_of_the_models_width(client):
    one = client.embeddings.create(model="minilm", input="hello world")
    assert (len(one.data), len(one.data[0].embedding)) == (1, 384)
    several = client.embeddings.create(model="minilm", input=["hello world", "another", "third"])
    assert [d.index for d in several.data] == [0, 1, 2]
    assert several.data[0].embedding == one.data[0].embedding
    assert several.usage.prompt_tokens > one.usage.prompt_tokens > 0
    assert several.model == "minilm"


def test_the_sdks_base64_default_and_floats_are_the_same_numbers(client):
    packed = client.embeddings.create(model="minilm", input="hello world").data[0].embedding
    floats = client.embeddings.create(
        model="minilm", input="hello world", encoding_format="float"
    ).data[0].embedding  # fmt: skip
    assert np.array_equal(np.array(packed, np.float32), np.array(floats, np.float32))


def test_dimensions_are_obeyed(client):
    found = client.embeddings.create(model="minilm", input="hello world", dimensions=16)
    vector = np.array(found.data[0].embedding)
    assert vector.shape == (16,)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


def test_what_we_add_reaches_the_caller(client):
    found = client.embeddings.create(model="minilm", input=["short", "word " * 500])
    extra = found.model_extra["hedgerow"]
    assert [r["truncated"] for r in extra["inputs"]] == [False, True]


def test_models_are_listed_and_found(client):
    assert [m.id for m in client.models.list()] == ["minilm"]
    assert client.models.retrieve("minilm").owned_by == "hedgerow"


def test_errors_arrive_as_the_sdks_own_classes_with_code_and_param(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="nope", input="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.embeddings.create(model="minilm", input=["a", ""])
    assert (wrong.value.code, wrong.value.param) == ("invalid_input", "input[1]")
    assert wrong.value.request_id


def test_token_ids_are_refused_by_naming_langchains_switch(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="minilm", input=[[64], [65]])
    assert "check_embedding_ctx_length=False" in refused.value.message


async def test_the_asynchronous_client_works_too(served):
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x") as client:
        found = await client.embeddings.create(model="minilm", input="hello world")
        assert len(found.data[0].embedding) == 384
