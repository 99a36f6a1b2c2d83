"""Facts over the hub's protocol: the same as from the files, for a fraction of their bytes; errors say what to do."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from forebay_operator.facts import FactsError
from forebay_operator.facts.hub import Hub, HubAddress, hub_facts
from forebay_operator.facts.inspect_model import inspect_model
from forebay_operator.facts.safetensors_header import INDEX_NAME
from tests.fakes.hub import TOKEN, FakeHub, Repository, fake_hub
from tests.test_operator.facts.gguf_files import LLAMA, write_gguf


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in several files of some megabytes."""
    folder = tmp_path_factory.mktemp("sharded")
    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=256,
        intermediate_size=1024,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=2000,
        max_position_embeddings=512,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder, max_shard_size="2MB")
    return folder


@pytest.fixture
def hub(sharded: Path) -> Iterator[FakeHub]:
    with fake_hub() as running:
        running.repositories["org/llama"] = Repository(sharded)
        yield running


def facts(hub: FakeHub, text: str, token: str = "") -> object:
    address = HubAddress.parse(text)
    assert address is not None
    return hub_facts(address, Hub(hub.url, token))


def test_facts_equal_those_of_the_files_for_a_fraction_of_their_bytes(hub: FakeHub, sharded: Path) -> None:
    assert facts(hub, "hf://org/llama") == inspect_model(sharded)
    names = {path for where, path, _ in hub.requests if where == "store"}
    assert names == {f"/org/llama//{path.name}" for path in sharded.glob("*.safetensors")} | {
        f"/org/llama//{INDEX_NAME}"
    }
    weights = sum(path.stat().st_size for path in sharded.glob("*.safetensors"))
    assert hub.sent_bytes < weights / 4


def test_a_server_without_ranges_gives_the_same(hub: FakeHub, sharded: Path) -> None:
    hub.knows_ranges = False
    assert facts(hub, "org/llama") == inspect_model(sharded)


def test_a_header_that_is_longer_than_the_first_request_is_read_whole(hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    config = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8,
              "num_attention_heads": 1, "vocab_size": 16, "max_position_embeddings": 64}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file({f"tensor.{n:05}": torch.zeros(1) for n in range(2000)}, folder / "model.safetensors")
    hub.repositories["org/many"] = Repository(folder)
    assert facts(hub, "org/many") == inspect_model(folder)
    assert facts(hub, "org/many").checkpoint.stored_parameters == 2000  # type: ignore[attr-defined]


def test_a_gguf_file_is_read_as_far_as_its_header_goes(hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "gguf"
    folder.mkdir()
    tokens = [f"a rather long token with the number {index:08}" for index in range(40_000)]  # 2 MB of header
    path = write_gguf(folder / "model.Q4.gguf", {**LLAMA, "tokenizer.ggml.tokens": tokens, "llama.vocab_size": 256})
    hub.repositories["org/gguf"] = Repository(folder)
    expected = inspect_model(path)
    assert facts(hub, "hf://org/gguf") == facts(hub, "hf://org/gguf/model.Q4.gguf") == expected
    shutil.copy(path, folder / "model.Q8.gguf")
    with pytest.raises(FactsError, match=r"has 2 GGUF files .*name one of them: hf://org/gguf/model\.Q4\.gguf"):
        facts(hub, "hf://org/gguf")


def test_the_token_goes_to_the_hub_and_nowhere_else(hub: FakeHub, sharded: Path) -> None:
    hub.repositories["org/secret"] = Repository(sharded, gated=True, private=True)
    hub.repositories["org/old-name"] = Repository(sharded, renamed_to="org/secret")
    assert facts(hub, "org/old-name", TOKEN) == inspect_model(sharded)
    assert {token for where, _, token in hub.requests if where == "hub"} == {TOKEN}
    assert {token for where, _, token in hub.requests if where == "store"} == {""}


@pytest.mark.parametrize(
    ("address", "token", "code", "words"),
    [
        ("org/gated", "", 12, ("config.json: gated", "set HF_TOKEN")),
        ("org/gated", "other", 12, ("gated", "ask for access")),
        ("org/private", "", 11, ("no such model", "set HF_TOKEN")),
        ("org/none", TOKEN, 11, ("hf://org/none", "no such model")),
        ("org/llama@v9", "", 11, ("hf://org/llama@v9", "no such revision")),
        ("org/empty", "", 11, ("neither config.json nor a GGUF file",)),
        ("org/llama/none.gguf", "", 11, ("no such file",)),
        ("org/holes", "", 11, ("is missing", "names it")),
        ("org/text", "", 2, ("hf://org/text/config.json", "not JSON")),
    ],
)
def test_what_cannot_be_had_is_told(
    address: str, token: str, code: int, words: tuple[str, ...], hub: FakeHub, sharded: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "config.json").write_text("a model")
    shutil.copytree(sharded, tmp_path / "holes")
    sorted((tmp_path / "holes").glob("*.safetensors"))[0].unlink()
    hub.repositories |= {
        "org/gated": Repository(sharded, gated=True),
        "org/private": Repository(sharded, private=True),
        **{f"org/{name}": Repository(tmp_path / name) for name in ("empty", "text", "holes")},
    }
    with pytest.raises(FactsError) as caught:
        facts(hub, address, token)
    assert caught.value.exit_code == code
    assert "\n" not in caught.value.message
    for word in words:
        assert word.replace("is missing", "missing") in caught.value.message


def test_a_hub_that_cannot_be_reached_is_told() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        address = HubAddress("org/llama")
        with pytest.raises(FactsError, match=r"cannot be reached: .*pass the path of the model"):
            hub_facts(address, Hub(endpoint))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://org/name", HubAddress("org/name")),
        ("org/name", HubAddress("org/name")),
        ("org/name@abc123", HubAddress("org/name", "abc123")),
        ("hf://org/name@refs/pr/4", HubAddress("org/name", "refs/pr/4")),
        ("hf://org/name/sub/model.gguf", HubAddress("org/name", "main", "sub/model.gguf")),
        ("hf://org/name@v1/model.gguf", HubAddress("org/name", "v1", "model.gguf")),
        ("hf://name", None),
        ("hf://../etc", None),
        ("hf://org/name?x", None),
        ("pvc://claim/path", None),
        ("", None),
    ],
)
def test_addresses(text: str, expected: HubAddress | None) -> None:
    assert HubAddress.parse(text) == expected


def test_the_environment_names_hub_and_token(tmp_path: Path, hub: FakeHub, sharded: Path) -> None:
    hub.repositories["org/gated"] = Repository(sharded, gated=True)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    for told in ({"HF_TOKEN": TOKEN}, {"HF_HOME": str(tmp_path)}, {"HF_TOKEN_PATH": str(tmp_path / "token")}):
        found = Hub.from_environment({"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "none"), **told})
        assert hub_facts(HubAddress("org/gated"), found) == inspect_model(sharded)
