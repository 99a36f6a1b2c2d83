"""The body of `POST /v1/responses`, and which of its fields this stateless server cannot honour."""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from forebay_server.api import not_offered
from forebay_server.api.not_offered import Fields
from forebay_server.api.openai_types import MAX_LOGPROBS, Body, Part, only_text

MetadataText = Annotated[str, StringConstraints(max_length=512)]


class InputPart(Part):
    """A part of a message or of what a tool gave: text, or what an assistant said when it refused."""

    type: Annotated[Literal["input_text", "output_text", "text", "refusal"], BeforeValidator(only_text)]


class InputItem(Body):
    """A message, a call that the model made before, or what came of one; `type` may be left out of a message."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class TextFormat(Body):
    """What the answer's text must be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, object] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextSettings(Body):
    """How the answer's text is written."""

    format: TextFormat | None = None


class ReasoningSettings(Body):
    """How long to think."""

    effort: str | None = None


class FunctionTool(Body):
    """A function that the model may call; other kinds of tools run on OpenAI's side and are not offered."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class FunctionChoice(Body):
    """The function that the model must call."""

    type: Literal["function"]
    name: str


class AllowedFunctions(Body):
    """The model is told of all functions and may call these."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1)]


Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ResponsesBody(Body):
    """`POST /v1/responses`; sampling parameters of the other endpoints are taken, too."""

    not_offered: ClassVar[Fields] = not_offered.RESPONSES

    model: str | None = None
    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    include: list[Included] | None = Field(None, description="what a stateless text model has none of is left out")
    stream: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedFunctions | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] | None = None
    metadata: Annotated[dict[str, MetadataText], Field(max_length=16)] | None = None
    user: str | None = None
    service_tier: str | None = None
