"""Faults that users of other servers reported, each as a test named after its place in the list of checks.

Those that fit another file's subject stand there under the same kind of name.
"""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.server_process import REAL, ServerProcess
from tests.fakes.tiny_model import END_TOKEN_ID, VOCAB_SIZE, write_tiny_model
from tests.test_server.models.tiny_llama import save_tiny_llama

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}


def complete(server: ServerProcess, **fields: Any) -> Any:
    reply = server.api(COMPLETIONS, fields)
    assert reply.status == 200, reply.body
    return reply.json


def stream(server: ServerProcess, path: str = COMPLETIONS, **fields: Any) -> list[Any]:
    """The chunks of a stream that ended as it should."""
    reply = server.api(path, {**fields, "stream": True})
    assert reply.status == 200, reply.body
    events = reply.body.decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def text_of(chunks: list[Any], index: int = 0) -> str:
    return "".join(part["text"] for chunk in chunks for part in chunk["choices"] if part["index"] == index)


def test_t1_no_part_of_a_stop_string_is_streamed(server: ServerProcess) -> None:
    """vllm #3574, #2577."""
    fields: dict[str, Any] = {"prompt": "seen ABCDEFGHIJ tail", "max_tokens": 60, "stop": ["DEFGHIJ"]}
    assert text_of(stream(server, **fields)) == "seen ABC"
    never = stream(server, **{**fields, "stop": ["tail!"]})
    assert text_of(never) == "seen ABCDEFGHIJ tail"
    assert [part["text"] for chunk in never for part in chunk["choices"]][-1] == "tail", "held back until the end"


def test_t3_a_long_stop_string_delays_nothing(server: ServerProcess) -> None:
    """vllm #11089."""
    chunks = stream(server, prompt="abcdefgh", max_tokens=20, stop=["z" * 40])
    assert [part["text"] for chunk in chunks for part in chunk["choices"]] == [*"abcdefgh", ""]


def test_t6_stray_bytes_are_shown_at_once_and_hold_nobody_up(server: ServerProcess) -> None:
    """sglang #8031, PR #13275, #34740: detokenizing must not go over everything again with each token."""
    lone = server.api("/tokenize", {"prompt": "é"}).json["tokens"][1]  # the second byte of two
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(stream, server, prompt=[lone], max_tokens=500, ignore_eos=True, user=str(number))
            for number in range(2)
        ]
        while not all(one.done() for one in both):
            assert server.api("/health").status == 200
    for one in both:
        texts = [part["text"] for chunk in one.result() for part in chunk["choices"]]
        assert texts == ["\ufffd"] * 500


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_t8_usage_comes_once_and_counts_every_choice(server: ServerProcess, path: str) -> None:
    """vllm #7262, #8625."""
    prompt = {"messages": [USER]} if path == CHAT else {"prompt": "hello"}
    chunks = stream(server, path, **prompt, n=2, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == server.api(path, {**prompt, "n": 2}).json["usage"]
    running = stream(server, path, **prompt, stream_options={"continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in running]
    assert counts == sorted(counts)
    assert counts[-1] > 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_t9_each_choice_ends_once(server: ServerProcess, path: str) -> None:
    """vllm #19650, #27572."""
    prompt = {"messages": [USER]} if path == CHAT else {"prompt": "hello"}
    parts = [part for chunk in stream(server, path, **prompt, n=3) for part in chunk["choices"]]
    assert all("finish_reason" in part for part in parts)
    for index in range(3):
        reasons = [part["finish_reason"] for part in parts if part["index"] == index]
        assert reasons[-1] == "stop"
        assert set(reasons[:-1]) <= {None}


def test_t11_without_stream_one_object_comes(server: ServerProcess) -> None:
    """mini-sglang PR #126."""
    for path, prompt in ((CHAT, {"messages": [USER]}), (COMPLETIONS, {"prompt": "hello"})):
        reply = server.api(path, {**prompt, "stream": False, "max_tokens": 1})
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.json["choices"][0]["finish_reason"] == "length"
        assert reply.json["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("text", ["abcDEFgh", "é漢🙂 and more", "DEFDEFDEF"])
def test_t12_prompts_are_cut_at_tokens(server: ServerProcess, text: str) -> None:
    """vllm PR #45636: `DEF` is one token."""
    ids = server.api("/tokenize", {"prompt": text}).json["tokens"]
    for kept in range(1, len(ids) + 2):
        cut = complete(server, prompt=text, truncate_prompt_tokens=kept, max_tokens=40)
        assert cut["usage"]["prompt_tokens"] == min(kept, len(ids))
        assert cut["choices"][0]["text"] == complete(server, prompt=ids[-kept:], max_tokens=40)["choices"][0]["text"]
    right = complete(server, prompt=text, truncate_prompt_tokens=2, truncation_side="right", max_tokens=40)
    assert right["choices"][0]["text"] == complete(server, prompt=ids[:2], max_tokens=40)["choices"][0]["text"]


def test_t12_minus_one_keeps_what_has_room(server: ServerProcess) -> None:
    long = complete(server, prompt="x" * 600, truncate_prompt_tokens=-1, max_tokens=5, ignore_eos=True)
    assert (long["usage"]["prompt_tokens"], long["usage"]["completion_tokens"]) == (507, 5)
    chat = server.api(CHAT, {"messages": [{"role": "user", "content": "x" * 600}], "truncate_prompt_tokens": -1})
    assert chat.json["usage"]["prompt_tokens"] == 511


def test_s2_a_seeded_request_does_not_depend_on_its_company(real_server: ServerProcess) -> None:
    """vllm #51226."""
    seeded = {"prompt": "abc", "seed": 7, "temperature": 1, "max_tokens": 12, "ignore_eos": True, "logprobs": 0}
    alone = complete(real_server, **seeded)["choices"]
    others = [{"prompt": "abc" + "x" * number, "max_tokens": 12, "ignore_eos": True} for number in range(8)]
    with ThreadPoolExecutor(9) as pool:
        busy = [pool.submit(complete, real_server, **other) for other in others]
        beside = pool.submit(complete, real_server, **seeded).result()["choices"]
        assert all(one.result()["choices"] for one in busy)
    assert beside[0]["text"] == alone[0]["text"]
    assert beside[0]["logprobs"]["tokens"] == alone[0]["logprobs"]["tokens"]
    crowd = complete(real_server, **{**seeded, "prompt": ["zzz", "abc", "q"]})["choices"]
    assert crowd[1]["text"] == alone[0]["text"]


@pytest.fixture(scope="module")
def tied_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model whose tokens all have the logit 0."""
    folder = tmp_path_factory.mktemp("tied")
    model = save_tiny_llama(
        write_tiny_model(folder / "model"), vocab_size=VOCAB_SIZE, eos_token_id=END_TOKEN_ID, tie_word_embeddings=False
    )
    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"] = torch.zeros_like(weights["lm_head.weight"])
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    running = ServerProcess(
        folder,
        ["--model", str(model), "--device", "cpu", "--dtype", "float32", "--kv-cache-tokens", "512"],
        program=REAL,
        wait_seconds=120,
    )
    yield running
    running.close()


def test_s7_ties_go_to_the_lowest_id_every_time(tied_server: ServerProcess) -> None:
    """vllm-project/tpu-inference PR #3580: every logit is 0; a bias lifts ten of them alike."""
    lifted = {str(token): 5 for token in range(40, 50)}
    fields = {"prompt": "abc", "max_tokens": 3, "logit_bias": lifted, "logprobs": 0, "ignore_eos": True}
    lowest = tied_server.api("/detokenize", {"tokens": [40] * 3}).json["prompt"]
    for _ in range(20):
        assert complete(tied_server, **fields, top_k=1)["choices"][0]["text"] == lowest
    assert complete(tied_server, **fields, temperature=0)["choices"][0]["text"] == lowest


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"logit_bias": {str(VOCAB_SIZE): 5}}, id="v1_bias_outside_the_vocabulary"),
        pytest.param({"logprobs": VOCAB_SIZE + 1}, id="v3_more_logprobs_than_tokens"),
        pytest.param({"n": 5_000_000}, id="v4_millions_of_choices"),
        pytest.param({"prompt": [VOCAB_SIZE]}, id="v4_id_outside_the_vocabulary"),
        pytest.param({"prompt": [-5]}, id="v4_negative_id"),
        pytest.param({"stop": ["x"] * 500_000}, id="v5_half_a_million_stop_strings"),
        pytest.param({"prompt": ""}, id="v6_empty_text"),
        pytest.param({"prompt": []}, id="v6_empty_list"),
        pytest.param({"prompt": [[]]}, id="v6_empty_list_in_a_list"),
        pytest.param({"max_tokens": 0}, id="v7_nothing_without_echo"),
        pytest.param({"prompt": "x" * 5000}, id="v15_too_long"),
        pytest.param({"prompt": "x" * 5000, "stream": True}, id="v15_too_long_for_a_stream"),
    ],
)
def test_v_bad_requests_are_refused_and_the_engine_lives(real_server: ServerProcess, fields: dict[str, Any]) -> None:
    """vllm PR #16529, #51447, #7283, #6521; sglang PR #31866, #40076, #31597, PR #36856, #4892, PR #2956."""
    reply = real_server.api(COMPLETIONS, {"prompt": "x", **fields})
    assert reply.status == 400
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert complete(real_server, prompt="ok", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_v3_the_limit_of_logprobs_is_named(server: ServerProcess) -> None:
    for path, fields in (
        (COMPLETIONS, {"prompt": "x", "logprobs": 21}),
        (CHAT, {"messages": [USER], "logprobs": True}),
    ):
        reply = server.api(path, fields | ({"top_logprobs": 21} if path == CHAT else {}))
        assert reply.status == 400
        assert "20" in reply.json["error"]["message"]


def test_v7_a_prompt_alone_counts_no_answer(real_server: ServerProcess) -> None:
    """vllm #6521; nothing is sampled for it, so the counters agree."""

    def generated() -> float:
        lines = real_server.ops("/metrics").body.decode().splitlines()
        return float(next(line for line in lines if line.startswith("forebay_generation_tokens_total")).split()[-1])

    before = generated()
    answer = complete(real_server, prompt="abc", echo=True, max_tokens=0)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("abc", 0)
    assert generated() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [USER], "temperature": -1},
        {"messages": [USER], "max_tokens": 5000},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
    ],
)
def test_v14_the_official_client_raises_its_own_errors(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    """vllm #12886."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", **fields)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param
    assert caught.value.message


def test_a1_two_clients_with_one_request_id_do_not_mix(server: ServerProcess) -> None:
    """vllm #10583, #15041, PR #27987."""

    def ask(text: str) -> str:
        reply = server.api(COMPLETIONS, {"prompt": text, "max_tokens": 200}, {"X-Request-Id": "the-same"})
        assert reply.headers["X-Request-Id"] == "the-same"
        answer: str = reply.json["choices"][0]["text"]
        return answer

    texts = [f"client {number} " * 10 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, texts)) == texts


def test_a1_one_connection_serves_requests_one_after_another(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    for number in range(20):
        body = json.dumps({"prompt": "q", "stream": number % 2 == 0})
        connection.request("POST", COMPLETIONS, body, {"Content-Type": "application/json", "X-Request-Id": "one"})
        assert '"text":"q"' in connection.getresponse().read().decode()
    connection.close()


def write_model_with_begin_token(folder: Path, template: str | None) -> Path:
    """`<|start|>` is the begin token, which the tokenizer adds to plain prompts."""
    write_tiny_model(folder, template=template)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    start = {"id": "<|start|>", "ids": [END_TOKEN_ID - 1], "tokens": ["<|start|>"]}
    piece: list[Any] = [{"Sequence": {"id": "A", "type_id": 0}}]
    begin: list[Any] = [{"SpecialToken": {"id": "<|start|>", "type_id": 0}}]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": begin + piece,
        "pair": begin + piece + [{"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|start|>": start},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "<|start|>"}))
    return folder


def test_c1_the_begin_token_stands_once(tmp_path: Path) -> None:
    """vllm #2012, PR #16976, #27486, PR #55288."""
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    server = ServerProcess(tmp_path, ["--model", str(write_model_with_begin_token(tmp_path / "m", template))])
    try:
        begin = END_TOKEN_ID - 1
        for body in ({"messages": [USER]}, {"prompt": "hi"}, {"prompt": "<|start|>hi"}):
            tokens = server.api("/tokenize", body).json["tokens"]
            assert (tokens[0], tokens.count(begin), len(tokens)) == (begin, 1, 3), body
        assert server.api("/tokenize", {"prompt": "hi", "add_special_tokens": False}).json["count"] == 2
        assert server.api("/tokenize", {"messages": [USER], "add_special_tokens": True}).json["count"] == 3
        assert server.api(CHAT, {"messages": [USER]}).json["usage"]["prompt_tokens"] == 3
        assert complete(server, prompt="hi")["usage"]["prompt_tokens"] == 3
        assert complete(server, prompt="hi", add_special_tokens=False)["usage"]["prompt_tokens"] == 2
    finally:
        server.close()


def test_c2_a_template_that_refuses_or_is_missing_is_400(tmp_path: Path, server: ServerProcess) -> None:
    """vllm #17119, #13978."""
    refused = server.api(CHAT, {"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]})
    assert refused.status == 400
    assert "this model knows no tools" in refused.json["error"]["message"]
    history = [USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER]
    assert server.api(CHAT, {"messages": history}).status == 200
    bare = ServerProcess(tmp_path, ["--model", str(write_tiny_model(tmp_path / "bare", template=None))])
    try:
        for path in (CHAT, "/tokenize", "/v1/responses"):
            name = "input" if "responses" in path else "messages"
            reply = bare.api(path, {name: [USER]})
            assert reply.status == 400
            assert "no chat template" in reply.json["error"]["message"]
        assert complete(bare, prompt="hi")["choices"][0]["text"] == "hi"
    finally:
        bare.close()
