"""Chat with tiny random models of other architectures through the whole server: the words that transformers picks."""

from pathlib import Path

import openai
import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from tests.fakes.server_process import REAL, ServerProcess
from tests.test_server.models.tiny_models import save_tiny
from tests.test_server.models.tiny_tokenizer import save_tokenizer

NUM_TOKENS = 12


@torch.inference_mode()
def greedy(model: PreTrainedModel, tokenizer: Tokenizer, question: str) -> str:
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    known = list(tokenizer.encode(prompt).ids)
    num_prompt = len(known)
    while len(known) < num_prompt + NUM_TOKENS:
        known.append(int(model(torch.tensor([known]), use_cache=False).logits[0, -1].argmax()))
    return str(tokenizer.decode(known[num_prompt:]))


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "mixtral"])
def test_chat_says_what_transformers_says(tmp_path: Path, name: str) -> None:
    folder, reference = save_tiny(tmp_path / "model", name, vocab_size=384, eos_token_id=383)
    tokenizer = save_tokenizer(folder)
    server = ServerProcess(
        tmp_path,
        ["--model", str(folder), "--served-model-name", name, "--device", "cpu", "--dtype", "float32"],
        program=REAL,
        wait_seconds=240,
    )
    try:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
            question = "Where does the log go? " * 3
            answer = client.chat.completions.create(
                model=name,
                messages=[{"role": "user", "content": question}],
                temperature=0,
                max_tokens=NUM_TOKENS,
            )
        assert answer.choices[0].finish_reason == "length"
        assert answer.choices[0].message.content == greedy(reference, tokenizer, question)
    finally:
        server.close()
