"""LangChain's OpenAI classes against a server whose answer is its prompt."""

import warnings
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.fakes.server_process import ServerProcess
from tests.fakes.tiny_model import write_tiny_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the library about itself
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

SAYS_THE_WORDS = "{% for message in messages %}{{ message.content }}{% endfor %}{% if tools %}{% endif %}"
"""Tools change nothing: the answer is the words of the messages."""


class Answer(BaseModel):
    """An answer."""

    kind: Literal["a", "b"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("langchain")
    model = write_tiny_model(folder / "model", template=SAYS_THE_WORDS)
    running = ServerProcess(folder, ["--model", str(model), "--served-model-name", "tiny"])
    yield running
    running.close()


def options(server: ServerProcess) -> dict[str, Any]:
    return {"model": "tiny", "base_url": f"http://127.0.0.1:{server.port}/v1", "api_key": "x", "max_retries": 0}


def test_chat_whole_streamed_and_in_batches(server: ServerProcess) -> None:
    chat = ChatOpenAI(**options(server), stream_usage=True)
    answer = chat.invoke([SystemMessage("be "), HumanMessage([{"type": "text", "text": "brief"}])])
    assert answer.content == "be brief"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == len("be brief") + 1
    chunks = list(chat.stream("hello"))
    assert "".join(str(chunk.content) for chunk in chunks) == "hello"
    assert sum(chunk.usage_metadata["input_tokens"] for chunk in chunks if chunk.usage_metadata) == len("hello")
    assert [answer.content for answer in chat.batch(["a", "b", "c"])] == ["a", "b", "c"]


async def test_chat_awaited(server: ServerProcess) -> None:
    chat = ChatOpenAI(**options(server))
    assert (await chat.ainvoke("hi")).content == "hi"
    assert "".join([str(chunk.content) async for chunk in chat.astream("hi")]) == "hi"


def test_tools_are_bound_called_and_answered(server: ServerProcess) -> None:
    bound = ChatOpenAI(**options(server)).bind_tools([Answer])
    call = '<tool_call>{"name": "Answer", "arguments": {"kind": "a"}}</tool_call>'
    asked: Any = bound.invoke(call)
    assert [(told["name"], told["args"]) for told in asked.tool_calls] == [("Answer", {"kind": "a"})]
    streamed: Any = None
    for chunk in bound.stream(call * 2):
        streamed = chunk if streamed is None else streamed + chunk
    assert [told["args"] for told in streamed.tool_calls] == [{"kind": "a"}] * 2
    history = [HumanMessage("u"), AIMessage("", tool_calls=asked.tool_calls)]
    assert bound.invoke([*history, ToolMessage("5", tool_call_id=asked.tool_calls[0]["id"])]).content == "u5"


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
def test_structured_answers(server: ServerProcess, method: Any) -> None:
    said = '{"kind": "b"}'
    if method == "function_calling":
        said = f'<tool_call>{{"name": "Answer", "arguments": {said}}}</tool_call>'
    structured = ChatOpenAI(**options(server)).with_structured_output(Answer, method=method)
    assert structured.invoke(said) == Answer(kind="b")


def test_the_responses_api(server: ServerProcess) -> None:
    chat = ChatOpenAI(**options(server), use_responses_api=True)
    assert chat.invoke("hello").text == "hello"
    assert "".join(chunk.text for chunk in chat.stream("hello")) == "hello"


def test_completions_and_embeddings(server: ServerProcess) -> None:
    completion = OpenAI(**options(server), n=2, best_of=2)
    assert len(completion.generate(["a"]).generations[0]) == 2
    assert OpenAI(**options(server)).invoke("abc") == "abc"
    assert "".join(OpenAI(**options(server)).stream("abc")) == "abc"
    embeddings = OpenAIEmbeddings(**options(server), check_embedding_ctx_length=False)
    assert embeddings.embed_documents(["a", "b"])[0] == embeddings.embed_query("a")
