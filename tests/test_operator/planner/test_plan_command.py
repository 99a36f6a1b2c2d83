"""`forebay plan`: exit status, outputs, files, wrong input, and how fast it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from forebay_operator.cli.plan import main
from tests.fakes.hub import Repository, fake_hub
from tests.smollm2 import smollm2_gguf

ROOT = Path(__file__).parents[3]
LLAMA = ["--model", "hf://meta-llama/Llama-3.3-70B-Instruct", "--accelerator", "h100-80gb"]

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}

MANIFEST = """\
apiVersion: serving.forebay.dev/v1alpha1
kind: InferenceService
metadata: {name: llama-70b}
spec:
  model: {uri: "pvc://models/llama"}
  accelerator: {profile: h100-80gb}
  context: {maxModelLen: 8192}
  kvBudget: {concurrentSequences: 16}
"""


def test_a_plan_ends_with_0_and_shows_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LLAMA, "--gpus-per-node", "4", "--max-model-len", "8192", "--concurrent-sequences", "16"]) == 0
    text = capsys.readouterr().out
    assert "tensor 4, pipeline 1" in text
    lines = text.splitlines()
    start = lines.index("memory of one h100-80gb")
    terms = {line[2:17].strip(): line[17:].strip() for line in lines[start + 1 : start + 13]}
    assert terms["weights"] == "35.28 GB"
    assert terms["KV cache"] == "10.74 GB"
    assert terms["sum"] == "52.88 GB"
    assert terms["left over"] == "32.04 GB"


def test_a_refusal_ends_with_1_and_names_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LLAMA, "--concurrent-sequences", "16"]) == 1
    text = capsys.readouterr().out
    assert "687.19 GB" in " ".join(text.split())
    assert "kvBudget.concurrentSequences: 12" in text


def test_json_and_yaml_are_the_object_of_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    wish = [*LLAMA, "--max-model-len", "8192", "--concurrent-sequences", "4"]
    assert main([*wish, "-o", "json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert main([*wish, "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == as_json
    assert as_json["guaranteed"] == {"sequences": 4, "length": 8192}
    assert as_json["kvBytesPerToken"] == 327_680


def test_accelerators_are_compared_by_cost(capsys: pytest.CaptureFixture[str]) -> None:
    compare = "l40s-48gb,h100-80gb,t4-16gb"
    assert main(["--model", "Qwen/Qwen3-32B", "--compare", compare, "--concurrent-sequences", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split()[0] for line in lines if line.strip().startswith(("l40s", "h100", "t4"))]
    assert rows[:2] == ["h100-80gb", "l40s-48gb"]
    assert rows[2] == "t4-16gb"  # refused: last


def test_a_local_gguf_is_planned_for_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(smollm2_gguf())
    wish = ["--model", model, "--accelerator", "cpu", "--memory", "3Gi", "--concurrent-sequences", "8"]
    assert main([*wish, "--max-model-len", "2048", "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["weights"], plan["quantization"]) == ("Q4_1", "auto")
    assert plan["weightBytesPerGPU"] < 134_515_008
    assert any("weights: Q4_1, as the checkpoint has them" in line for line in plan["explanation"])
    assert main([*wish, "--max-model-len", "2048", "--quantization", "bf16", "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["weightBytesPerGPU"] == 134_515_008 * 2
    assert any("bf16, dequantized from Q4_1" in line for line in plan["explanation"])


def test_a_file_is_planned_as_the_operator_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(MANIFEST)
    assert main(["-f", str(path), "--model", "meta-llama/Llama-3.3-70B-Instruct", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["guaranteed"] == {"sequences": 16, "length": 8192}


def test_profiles_in_the_file_override_the_catalogue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = {
        "kind": "AcceleratorProfile",
        "metadata": {"name": "h100-80gb"},
        "spec": {
            "memory": "8Gi",
            "bandwidthBytesPerSecond": 10**12,
            "peakFlops": {"bf16": 10**14},
            "native": ["bf16"],
            "linkBytesPerSecond": 10**10,
        },
    }
    path = tmp_path / "service.yaml"
    path.write_text(f"{MANIFEST}---\n{yaml.safe_dump(profile)}")
    assert main(["-f", str(path), "--model", "meta-llama/Llama-3.3-70B-Instruct"]) == 1
    assert "has 8.59 GB" in " ".join(capsys.readouterr().out.split())


def test_a_file_without_accelerator_takes_it_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(MANIFEST.replace("  accelerator: {profile: h100-80gb}\n", ""))
    wish = ["-f", str(path), "--model", "meta-llama/Llama-3.3-70B-Instruct"]
    assert main(wish) == 2
    check_one_line(capsys.readouterr().err, "service.yaml: spec.accelerator: is missing", "--accelerator")
    assert main([*wish, "--accelerator", "h200-141gb"]) == 0
    assert "2 x h200-141gb" in capsys.readouterr().out
    path.write_text(MANIFEST)
    assert main([*wish, "--accelerator", "h200-141gb"]) == 2
    check_one_line(capsys.readouterr().err, "spec.accelerator says h100-80gb", "leave --accelerator out")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('uri: "pvc://models/llama"', "uri: hf://org/name"), ("spec.model.uri: model.uri must be pvc://CLAIM",)),
        (("profile: h100-80gb", "profile: h100"), ("spec.accelerator.profile", "'h100'", "h100-80gb")),
        (("maxModelLen: 8192", "maxModelLen: -5"), ("spec.context.maxModelLen",)),
        (("maxModelLen", "maxModelLength"), ("spec.context.maxModelLength",)),
        (("kind: InferenceService", "kind: Pod"), ("0 objects of kind InferenceService",)),
        (("spec:", "spec: ["), ("is not YAML",)),
    ],
)
def test_a_wrong_file_gives_one_line_that_names_file_and_key(
    change: tuple[str, str], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(MANIFEST.replace(*change))
    assert main(["-f", str(path), "--model", "meta-llama/Llama-3.3-70B-Instruct"]) == 2
    check_one_line(capsys.readouterr().err, "service.yaml", *words)


def test_a_file_without_known_model_says_what_to_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(MANIFEST)
    assert main(["-f", str(path)]) == 2
    check_one_line(capsys.readouterr().err, "spec.model.uri pvc://models/llama", "pass --model")


def test_a_claims_folder_that_is_named_like_a_known_model_is_taken_for_it_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(MANIFEST.replace("models/llama", "models/meta-llama/Llama-3.3-70B-Instruct"))
    assert main(["-f", str(path)]) == 0
    told = capsys.readouterr()
    assert "llama 70.6B on 4 x h100-80gb" in told.out
    check_one_line(told.err, "is taken for meta-llama/Llama-3.3-70B-Instruct as published", "--model")


def test_a_model_of_the_hub_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    wish = ["--model", "hf://org/tiny", "--accelerator", "l4-24gb", "--concurrent-sequences", "1"]
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.repositories["org/tiny"] = Repository(tmp_path)
        assert main(wish) == 0
        assert "llama 0M on 1 x l4-24gb" in capsys.readouterr().out
        hub.repositories["org/tiny"].private = True
        assert main(wish) == 2
    check_one_line(capsys.readouterr().err, "hf://org/tiny/config.json", "set HF_TOKEN")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("just text", ("config.json", "not JSON")),
        ("[1, 2]", ("config.json", "must hold an object")),
        (json.dumps({**CONFIG, "hidden_size": None}), ("config.json", "'hidden_size'", "missing")),
        (json.dumps({**CONFIG, "num_hidden_layers": -3}), ("config.json", "'num_hidden_layers'", "-3")),
        (json.dumps({**CONFIG, "vocab_size": "many"}), ("config.json", "'vocab_size'", "'many'")),
        (json.dumps({**CONFIG, "model_type": "perceiver"}), ("config.json", "'model_type'", "'perceiver'", "llama")),
        (json.dumps({**CONFIG, "num_key_value_heads": 3}), ("config.json", "'num_key_value_heads'", "4")),
        (json.dumps({**CONFIG, "torch_dtype": "int3"}), ("config.json", "'torch_dtype'", "int3")),
        (json.dumps({"vocab_size": 5}), ("config.json", "'model_type'", "missing")),
        (json.dumps({**CONFIG, "quantization_config": {"quant_method": "magic"}}), ("quantization_config", "'magic'")),
    ],
)
def test_a_wrong_config_gives_one_line_that_names_file_and_key(
    content: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    assert main(["--model", str(path), "--accelerator", "h100-80gb"]) == 2
    check_one_line(capsys.readouterr().err, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ("--model", "--accelerator", "--help")),
        (["--model", "./no-such-folder-here", "--accelerator", "h100-80gb"], ("no-such-folder-here",)),
        (["--model", "nobody/nothing", "--accelerator", "h100-80gb"], ("catalogue", "hf://nobody/nothing asks")),
        (["--model", "hf://nobody", "--accelerator", "h100-80gb"], ("must be hf://org/name",)),
        (["--model", "s3://bucket/a", "--accelerator", "h100-80gb"], ("s3://bucket/a", "only hf://")),
        (["--model", "Qwen/Qwen3-8B", "--accelerator", "h100"], ("'h100'", "h100-80gb")),
        (["--model", "Qwen/Qwen3-8B", "--accelerator", "cpu"], ("accelerator.memory", "8Gi")),
        (["--model", "Qwen/Qwen3-8B", "--compare", "h100-80gb,nope"], ("'nope'",)),
        (["--model", "Qwen/Qwen3-8B", "--accelerator", "h100-80gb", "--allowed", "bf17"], ("'bf17'",)),
        (["-f", "service.yaml", "--compare", "h100-80gb"], ("--compare", "-f")),
        (["-f", "service.yaml", "--max-model-len", "5"], ("--max-model-len", "service.yaml says it")),
        (["-f", "service.yaml", "--accelerator", "cpu"], ("service.yaml", "cannot be read")),
        (["-f", "no-such-file.yaml"], ("no-such-file.yaml", "No such file")),
    ],
)
def test_wrong_arguments_give_one_line(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    check_one_line(capsys.readouterr().err, *words)


@pytest.mark.parametrize(
    "arguments", [["--max-model-len", "0"], ["--memory", "8Q"], ["--kv-tokens", "5", "--kv-memory", "1Gi"]]
)
def test_values_out_of_range_are_refused_by_the_parser(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*LLAMA, *arguments])


def test_it_answers_without_heavy_libraries() -> None:
    program = (
        "import sys\n"
        "from forebay_operator.cli.plan import main\n"
        f"status = main({[*LLAMA, '--concurrent-sequences', '4', '--max-model-len', '8192']!r})\n"
        "heavy = {name.split('.')[0] for name in sys.modules} & {'torch', 'kopf', 'kubernetes', 'numpy', 'pydantic'}\n"
        "assert not heavy, heavy\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "operator", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_file_needs_neither_torch_nor_kopf(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(MANIFEST)
    program = (
        "import sys\n"
        "from forebay_operator.cli.plan import main\n"
        f"status = main(['-f', {str(path)!r}, '--model', 'meta-llama/Llama-3.3-70B-Instruct'])\n"
        "heavy = {name.split('.')[0] for name in sys.modules} & {'torch', 'kopf', 'kubernetes', 'numpy'}\n"
        "assert not heavy, heavy\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "operator", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def check_one_line(text: str, *words: str) -> None:
    assert text.endswith("\n")
    assert text.count("\n") == 1
    for word in words:
        assert word in text
