"""The whole server with the real engine and SmolLM2 on the CPU, used as its users would."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.fakes.server_process import REAL, ServerProcess, wait_for
from tests.smollm2 import smollm2_gguf
from tests.test_server.test_pressure import is_idle, open_request

pytestmark = pytest.mark.model

LOAD_SECONDS = 240
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


def start(folder: Path, *arguments: str) -> ServerProcess:
    return ServerProcess(
        folder,
        ["--model", str(smollm2_gguf()), "--served-model-name", "smollm2", "--device", "cpu", *arguments],
        program=REAL,
        wait_seconds=LOAD_SECONDS,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = start(tmp_path_factory.mktemp("real"), "--max-model-len", "2048", "--dtype", "float32")
    yield running
    running.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_chat_question_is_answered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=30)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Write one line with an emoji 🙂 and an é."}],
        "max_tokens": 40,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**arguments)
    chunks = list(client.chat.completions.create(**arguments, stream=True))
    assert "".join(part.delta.content or "" for chunk in chunks for part in chunk.choices) == (
        whole.choices[0].message.content
    )


def test_choices_differ_and_a_seed_repeats_them(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {"model": "smollm2", "prompt": "My favourite animal is", "n": 4, "max_tokens": 12}
    first, second = (client.completions.create(**arguments, seed=11) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 4
    assert texts == [choice.text for choice in second.choices]


def test_stop_strings_and_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2", prompt="1, 2, 3, 4,", temperature=0, max_tokens=20, stop=[" 7"], logprobs=2
    )
    assert answer.choices[0].text == " 5, 6,"
    assert answer.choices[0].finish_reason == "stop"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert answer.usage is not None
    assert len(logprobs.token_logprobs) == answer.usage.completion_tokens
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs)


def test_a_repeated_prompt_is_taken_from_the_cache(client: openai.OpenAI) -> None:
    prompt = "The quick brown fox jumps over the lazy dog. " * 10
    answers = [client.completions.create(model="smollm2", prompt=prompt, temperature=0, max_tokens=8) for _ in "ab"]
    assert answers[0].choices[0].text == answers[1].choices[0].text
    usage = answers[1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert 64 <= (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens


def test_bad_requests_do_not_disturb_the_next(server: ServerProcess, client: openai.OpenAI) -> None:
    for body in ({"prompt": ""}, {"prompt": [49_152]}, {"prompt": "x", "max_tokens": 99_999}, {"prompt": "x", "n": 0}):
        assert server.api("/v1/completions", body).status == 400
        assert client.completions.create(model="smollm2", prompt="x", max_tokens=1).usage is not None


async def test_fifty_streams_finish_while_the_probes_answer(server: ServerProcess) -> None:
    """The figures are printed; the bound here is loose, since test machines are busy."""
    times: dict[str, list[float]] = {"/livez": [], "/metrics": []}
    done = threading.Event()

    def probe() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.ops_port}", timeout=30) as http:
            while not done.is_set():
                for path, taken in times.items():
                    started = time.monotonic()
                    assert http.get(path).status_code == 200
                    taken.append(time.monotonic() - started)
                time.sleep(0.1)

    probing = threading.Thread(target=probe)
    probing.start()
    started = time.monotonic()
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", timeout=500) as client:

        async def one(number: int) -> tuple[str, int]:
            stream = await client.chat.completions.create(
                model="smollm2",
                messages=[{"role": "user", "content": f"Say something about the number {number}."}],
                temperature=0,
                max_tokens=32,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            text, tokens = "", 0
            async for chunk in stream:
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                tokens = chunk.usage.completion_tokens if chunk.usage else tokens
            return text, tokens

        answers = await asyncio.gather(*map(one, range(50)))
    seconds = time.monotonic() - started
    done.set()
    probing.join()
    assert [tokens for _, tokens in answers] == [32] * 50
    assert all(text for text, _ in answers)
    for path, taken in times.items():
        ordered = sorted(taken)
        print(f"{path}: median {ordered[len(ordered) // 2] * 1e3:.1f} ms, slowest {ordered[-1] * 1e3:.1f} ms")
        assert ordered[len(ordered) * 9 // 10] < 0.5
    print(f"50 streams of 32 tokens: {seconds:.1f} s, {1600 / seconds:.0f} tokens/s")
    wait_for(lambda: is_idle(server), 5, "idle again")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks(server: ServerProcess, stream: bool) -> None:
    with open_request(server, stream=stream, num_tokens=1500):
        wait_for(lambda: server.load()["running"] == 1, 10, "it runs")
    wait_for(lambda: is_idle(server), 5, "idle again")


def test_sigterm_lets_the_stream_finish(tmp_path: Path) -> None:
    server = start(tmp_path, "--max-model-len", "512")
    try:
        body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}
        with (
            httpx.Client(timeout=120) as http,
            http.stream("POST", f"http://127.0.0.1:{server.port}/v1/completions", json=body) as response,
        ):
            lines = response.iter_lines()
            next(lines)
            server.signal(signal.SIGTERM)
            wait_for(lambda: server.ops("/readyz").status == 503, 5, "not ready")
            assert server.api("/v1/completions", {"prompt": "x"}).status == 503
            events = [line for line in lines if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in events[-2]
        assert server.wait(10) == 0
    finally:
        server.close()


@pytest.mark.parametrize(
    ("damage", "exit_code", "words"),
    [("truncated", 16, "short"), ("garbage", 16, "not a GGUF file"), ("missing", 11, "no such file")],
)
def test_a_damaged_model_ends_the_server_with_its_exit_code(
    tmp_path: Path, damage: str, exit_code: int, words: str
) -> None:
    model = tmp_path / "model.gguf"
    if damage == "truncated":
        content = smollm2_gguf().read_bytes()
        model.write_bytes(content[: len(content) // 2])
    elif damage == "garbage":
        model.write_bytes(b"not a model at all, but long enough to be one" * 10)
    server = ServerProcess(tmp_path, ["--model", str(model)], program=REAL, wait_seconds=0)
    try:
        assert server.wait(120) == exit_code
        assert str(model) in server.termination["message"]
        assert words in server.termination["message"]
        assert "Traceback" not in server.log
    finally:
        server.close()
