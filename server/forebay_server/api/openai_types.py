"""Request bodies, as OpenAI names them, with the extensions that other servers share. Unknown fields are tolerated."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from forebay_server.api import not_offered
from forebay_server.api.not_offered import Fields

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_ALLOWED_TOKENS = 65_536
MAX_BAD_WORDS = 128
MAX_TOOLS = 256

StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
TokenId = Annotated[int, Field(ge=0)]
LogitBias = Annotated[float, Field(ge=-100, le=100)]


class Body(BaseModel):
    """What all bodies have in common."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


Priority = Annotated[int, Field(ge=-(2**31), lt=2**31, description="lower is served first; needs the policy")]


class StreamOptions(Body):
    """What a stream says besides its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Truncated(Body):
    """A body whose prompts may be cut."""

    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, le=2**31, description="keep so many tokens of a prompt; -1: as many as there is room for"
    )
    truncation_side: Literal["left", "right"] | None = Field(None, description="which end is cut; left by default")


class JsonSchemaFormat(Body):
    """The `json_schema` of a response format."""

    name: str | None = None
    description: str | None = None
    json_schema: dict[str, object] | bool = Field(alias="schema")
    strict: bool | None = Field(None, description="schemas are enforced in either case")


def _known_format(kind: object) -> object:
    """What `type` says of a format; that of other servers is refused in words that say what to do."""
    if kind == "structural_tag":
        raise PydanticCustomError("not_offered", "structural_tag is not offered here; use tools, or a grammar")
    return kind


class ResponseFormat(Body):
    """What the answer must be."""

    type: Annotated[Literal["text", "json_object", "json_schema"], BeforeValidator(_known_format)]
    json_schema: JsonSchemaFormat | None = None
    schema_of_object: dict[str, object] | bool | None = Field(
        None, alias="schema", description="of a json_object, as llama.cpp's clients say it"
    )


class StructuredOutputs(Body):
    """What the answer must be, as vLLM's clients say it: exactly one of the fields."""

    not_offered: ClassVar[Fields] = not_offered.STRUCTURED_OUTPUTS

    schema_or_text: str | bool | dict[str, object] | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = Field(None, description="in Lark, or in GBNF with the rule `root`")
    json_object: bool | None = None


class GenerationBody(Truncated):
    """What both kinds of generation share."""

    not_offered: ClassVar[Fields] = not_offered.GENERATION

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, description="0 or -1: all")
    min_p: float | None = Field(None, ge=0, le=1)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=2, description="of tokens in prompt and answer; 1: none")
    logit_bias: Annotated[dict[str, LogitBias], Field(max_length=MAX_LOGIT_BIASES)] | None = Field(
        None, description="token id to what is added to its logit"
    )
    allowed_token_ids: Annotated[list[TokenId], Field(max_length=MAX_ALLOWED_TOKENS)] | None = None
    bad_words: Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | bool | dict[str, object] | None = Field(
        None, description="older name of structured_outputs.json"
    )
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    json_schema: str | bool | dict[str, object] | None = Field(
        None, description="SGLang's name of structured_outputs.json"
    )
    regex: str | None = Field(None, description="SGLang's name of structured_outputs.regex")
    ebnf: str | None = Field(None, description="SGLang's name of structured_outputs.grammar")
    best_of: int | None = Field(None, ge=1, description="no more than n: all are given")
    return_token_ids: bool | None = Field(None, description="of prompt and answer, beside the text")
    return_tokens_as_token_ids: bool | None = Field(
        None, description="log-probabilities name tokens as `token_id:7`, which no two share"
    )
    user: str | None = Field(None, description="tenants take turns; the header X-Forebay-Tenant goes before it")
    priority: Priority | None = None
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None


_IS_FILLED = Field(min_length=1, fail_fast=True)  # a list of another kind is left at its first item, not at its last
Prompts = (
    str
    | Annotated[list[str], _IS_FILLED]
    | Annotated[list[TokenId], _IS_FILLED]
    | Annotated[list[Annotated[list[TokenId], _IS_FILLED]], _IS_FILLED]
)
"""One or several prompts, each a text or token ids; all of one kind."""


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    not_offered: ClassVar[Fields] = not_offered.COMPLETION

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, description="0 only with echo: the prompt comes back alone")
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool | None = None


def only_text(kind: object) -> object:
    """What `type` says of a part; others than text are refused in words that say what to do."""
    if isinstance(kind, str) and not kind.endswith("text") and kind != "refusal":
        raise PydanticCustomError("not_text", "parts of type {kind} are not read: send text", {"kind": repr(kind[:40])})
    return kind


class Part(Body):
    """What all kinds of parts have in common."""

    text: str | None = None
    refusal: str | None = None


class ContentPart(Part):
    """A part of a message: text, or what an assistant said when it refused."""

    type: Annotated[Literal["text", "refusal"], BeforeValidator(only_text)]


class CalledFunction(Body):
    """What an assistant called."""

    name: str
    arguments: str = Field(description="JSON")


class ToolCall(Body):
    """A call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    """One message; further fields reach the chat template as they are."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, object] | None = Field(None, description="JSON Schema of the arguments; none: no arguments")
    strict: bool | None = None


class Tool(Body):
    """A tool; only functions are offered."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Body):
    """Which function."""

    name: str


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(Body):
    """The model is told of all tools and may call these."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class ConversationBody(Body):
    """What says how messages become a prompt."""

    tools: Annotated[list[Tool], Field(min_length=1, max_length=MAX_TOOLS)] | None = None
    documents: list[dict[str, object]] | None = Field(None, description="for chat templates that read some")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = Field(
        None, description="go on with the last message, which is the assistant's"
    )
    reasoning_effort: str | None = Field(
        None, description="told to the chat template; `none` also as `enable_thinking: false`"
    )
    chat_template_kwargs: dict[str, object] | None = None


class ChatBody(GenerationBody, ConversationBody):
    """`POST /v1/chat/completions`."""

    not_offered: ClassVar[Fields] = not_offered.CHAT

    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice | None = None
    parallel_tool_calls: bool | None = None
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    include_reasoning: bool | None = Field(None, description="false: the answer alone")


class TokenizeBody(ConversationBody):
    """`POST /tokenize`: exactly one of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[TokenId]


class EmbeddingBody(Truncated):
    """`POST /v1/embeddings`."""

    not_offered: ClassVar[Fields] = not_offered.EMBEDDINGS

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["last", "mean"] | None = Field(
        None, description="which final hidden states: the last token's (default) or the mean of all"
    )
    add_special_tokens: bool | None = None
    user: str | None = None
    priority: Priority | None = None
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = None
