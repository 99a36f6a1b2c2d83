"""Fields of a body that this version does not do: which values ask for nothing, and what to do instead."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class NotOffered:
    """One field.

    Args:
        neutral: values that ask for nothing, and are taken.
        instead: what to do; ends the sentence "... is not offered by this server; ".
    """

    neutral: tuple[object, ...] = (None,)
    instead: str = "leave it out"

    def allows(self, value: object) -> bool:
        """Whether a value asks for nothing."""
        return any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in self.neutral
        )


Fields = Mapping[str, NotOffered]

_FLAG = NotOffered((None, False))

GENERATION: Final[Fields] = {
    "custom_logit_processor": NotOffered(),
    "guided_whitespace_pattern": NotOffered(),
    "kv_transfer_params": NotOffered(),
    "length_penalty": NotOffered((None, 1)),
    "logprob_token_ids": NotOffered(instead="use logprobs"),
    "lora_path": NotOffered(),
    "repetition_detection": NotOffered(),
    "return_hidden_states": NotOffered((None, False), "use /v1/embeddings"),
    "separate_reasoning": NotOffered((None, True), "leave it out (reasoning comes in a field of its own)"),
    "stop_regex": NotOffered(instead="use stop"),
    "stream_reasoning": NotOffered((None, True)),
    "structural_tag": NotOffered(instead="use tools, or a grammar"),
    "thinking_token_budget": NotOffered(instead="use max_tokens, which counts reasoning, too"),
    "use_beam_search": NotOffered((None, False), "ask for n choices"),
}
COMPLETION: Final[Fields] = {
    **GENERATION,
    "prompt_embeds": NotOffered(instead="use prompt"),
    "suffix": NotOffered((None, ""), "put what comes before and after into the prompt, as the model wants it"),
}
CHAT: Final[Fields] = {
    **GENERATION,
    "add_special_tokens": NotOffered((None, False), "leave it out (the chat template writes them)"),
    "audio": NotOffered(),
    "chat_template": NotOffered(
        instead="leave it out (the model's own is used), or render the prompt for /v1/completions"
    ),
    "echo": NotOffered((None, False), "use /v1/completions"),
    "function_call": NotOffered((None, "none"), "use tool_choice"),
    "functions": NotOffered((None, []), "use tools"),
    "mm_processor_kwargs": NotOffered((None, {})),
    "modalities": NotOffered((None, ["text"]), "leave it out (answers are text)"),
    "web_search_options": NotOffered(instead="search in a tool of your own"),
}
RESPONSES: Final[Fields] = {
    "background": _FLAG,
    "conversation": NotOffered(instead="send what was said before as input"),
    "max_completion_tokens": NotOffered(instead="use max_output_tokens"),
    "max_tokens": NotOffered(instead="use max_output_tokens"),
    "moderation": NotOffered(),
    "n": NotOffered((None, 1), "send the request several times"),
    "previous_response_id": NotOffered(instead="send what was said before as input"),
    "prompt": NotOffered(instead="use input"),
    "return_token_ids": NotOffered((None, False), "use /v1/chat/completions"),
    "store": NotOffered((None, False), "leave it out (nothing is stored)"),
}
EMBEDDINGS: Final[Fields] = {
    "dimensions": NotOffered(instead="leave it out (the model was not trained for shorter vectors)"),
    "messages": NotOffered(instead="use input"),
}
STRUCTURED_OUTPUTS: Final[Fields] = {
    "disable_additional_properties": NotOffered((None, False), "write additionalProperties: false into the schema"),
    "disable_any_whitespace": _FLAG,
    "structural_tag": NotOffered(instead="use tools, or a grammar"),
    "whitespace_pattern": NotOffered(),
}
"""Of `structured_outputs`."""
