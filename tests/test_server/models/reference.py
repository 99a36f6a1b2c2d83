"""What transformers says in float32: the yardstick for our answers."""

import inspect
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

NEAR_TIE = 0.05
"""Where the reference's two best logits are this close, either is right."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One position where another token was picked than the reference's best."""

    position: int
    picked: int
    best: int
    gap: float
    """By how much the reference prefers its own."""


class Reference:
    """SmolLM2 as transformers reads it from the same GGUF file."""

    def __init__(self, gguf_file: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(
            gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32, local_files_only=True
        )

    def save(self, folder: Path) -> Path:
        """Write config.json and safetensors (`save_pretrained` refuses models that came from GGUF)."""
        config = self._model.config.to_dict()
        config.pop("quantization_config", None)
        config["architectures"] = [type(self._model).__name__]
        (folder / "config.json").write_text(json.dumps(config))
        weights = {name: weight for name, weight in self._model.state_dict().items() if name != "lm_head.weight"}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    @torch.inference_mode()
    def differences(self, prompt: list[int], answer: list[int]) -> list[Difference]:
        """Where a greedy answer leaves the reference's choice, given its own tokens before."""
        num_logits = len(answer)
        known = torch.tensor([prompt + answer[:-1]])
        logits = self._model(known, logits_to_keep=num_logits, use_cache=False).logits[0]  # [num_logits, vocab_size]
        best_logits, best = logits.max(dim=-1)
        picked = logits.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
        gaps = best_logits - picked
        return [
            Difference(position, answer[position], int(best[position]), float(gaps[position]))
            for position in range(num_logits)
            if answer[position] != best[position]
        ]


def english_texts() -> list[str]:
    """Long texts that every Python has."""
    return [text for module in (inspect, json, logging) if (text := inspect.getdoc(module))] + [
        inspect.getsource(module) for module in (json, logging, inspect)
    ]
