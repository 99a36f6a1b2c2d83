"""Where a model lies that `--model` names. Imports nothing that takes time: a server looks before it begins."""

from pathlib import Path

from forebay_server.errors import ExitCode, StartupError


def locate_model(model: str) -> Path:
    """The GGUF file, or the folder with `tokenizer.json`, that `--model` means.

    Raises:
        StartupError: MODEL_NOT_FOUND, saying what was looked for.
    """
    path = Path(model)
    if path.is_file():
        return path
    if not path.is_dir():
        raise _not_found(f"--model {model}: there is no such file or folder")
    if (path / "config.json").is_file():
        if not (path / "tokenizer.json").is_file():
            raise _not_found(f"--model {model}: the folder has config.json but no tokenizer.json")
        return path
    found = sorted(path.glob("*.gguf"))
    if len(found) != 1:
        raise _not_found(
            f"--model {model}: the folder has no config.json and {len(found)} GGUF files; name one file, "
            "or give a folder with one GGUF file or with config.json, tokenizer.json and safetensors"
        )
    return found[0]


def _not_found(message: str) -> StartupError:
    return StartupError(ExitCode.MODEL_NOT_FOUND, "ModelNotFound", message)
