"""The command line: every flag of the contract, checked; torch is not needed for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from forebay_server.arguments import parse_args
from forebay_server.config import ServerConfig
from forebay_server.errors import ExitCode, StartupError

CONTRACT = [
    *("--model", "m.gguf", "--served-model-name", "a", "b", "--revision", "r1", "--device", "cpu"),
    *("--dtype", "float32", "--tensor-parallel-size", "1", "--pipeline-parallel-size", "1"),
    *("--quantization", "none", "--kv-cache-dtype", "auto", "--kv-cache-tokens", "4096"),
    *("--max-model-len", "2048", "--max-num-seqs", "8", "--max-num-batched-tokens", "256", "--block-size", "32"),
    *("--max-queued-requests", "9", "--queue-timeout", "30", "--drain-timeout", "300"),
    *("--num-speculative-tokens", "0", "--host", "::", "--port", "1234", "--ops-port", "1235"),
]


def test_every_flag_of_the_contract_is_understood(tmp_path: Path) -> None:
    for name in ("keys", "plan"):
        (tmp_path / name).write_text("{}")
    files = ["--api-key-file", str(tmp_path / "keys"), "--plan-file", str(tmp_path / "plan")]
    config = parse_args([*CONTRACT, *files])
    assert config.engine.model == "m.gguf"
    assert config.engine.kv_cache_tokens == 4096
    assert config.engine.block_size == 32
    assert config.served_model_names == ("a", "b")
    assert config.queue_timeout_seconds == 30
    assert (config.port, config.ops_port, config.host) == (1234, 1235, "::")


def test_defaults_are_those_of_the_configuration_classes() -> None:
    config = parse_args(["--model", "folder/SmolLM2.gguf"])
    assert config == ServerConfig(engine=config.engine, served_model_names=("SmolLM2",))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--no-such-flag"], "--no-such-flag"),
        (["--max-num-seq", "3"], "--max-num-seq"),
        (["--port", "70000"], "0 to 65535"),
        (["--port", "x"], "whole number"),
        (["--port", "80", "--ops-port", "80"], "must differ"),
        (["--max-num-seqs", "0"], "1 or more"),
        (["--block-size", "24"], "power of two"),
        (["--kv-cache-tokens", "8"], "--kv-cache-tokens"),
        (["--queue-timeout", "nan"], "--queue-timeout"),
        (["--queue-timeout", "-1"], "--queue-timeout"),
        (["--dtype", "int3"], "--dtype"),
        (["--pipeline-parallel-size", "0"], "--pipeline-parallel-size"),
        (["--quantization", "int9"], "--quantization"),
        (["--quantization-exclude", "re:("], "--quantization-exclude re:("),
        (["--device", "cpu", "--kv-cache-dtype", "fp8"], "--kv-cache-dtype fp8"),
        (["--draft-model", "x"], "--draft-model x"),
        (["--num-speculative-tokens", "4"], "--num-speculative-tokens 4"),
        (["--api-key-file", "/nowhere"], "/nowhere"),
        (["--plan-file", "/nowhere"], "/nowhere"),
    ],
)
def test_bad_flags_are_exit_2_and_named(arguments: list[str], words: str) -> None:
    with pytest.raises(StartupError) as refused:
        parse_args(["--model", "m", *arguments])
    assert refused.value.exit_code == ExitCode.BAD_CONFIGURATION
    assert words in refused.value.message
    assert "\n" not in refused.value.message


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        parse_args(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert "forebay serve --model" in text
    assert "exit codes" in text


@pytest.mark.parametrize("module", ["forebay_server.cli", "forebay_server.supervisor", "forebay_server.ops.process"])
def test_only_the_engine_process_imports_torch(module: str) -> None:
    script = f"import sys, {module}; sys.exit(any(name in sys.modules for name in ('torch', 'triton')))"
    subprocess.run([sys.executable, "-c", script], check=True)
