"""Ask a served model one question through its Kubernetes Service, with the official openai client."""

import time
from dataclasses import dataclass

import openai

from hack.kube import ToolError, get


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and how fast."""

    base_url: str
    model: str
    text: str
    num_tokens: int
    seconds_to_first_token: float
    tokens_per_second: float


def service_url(namespace: str, name: str) -> str:
    """`http://CLUSTER-IP:PORT/v1` of a Service; the host has a route to the cluster's Services.

    Raises:
        ToolError: there is no such Service.
    """
    service = get("service", name, namespace)
    if service is None:
        raise ToolError(f"there is no Service {name} in namespace {namespace}")
    port = next(p["port"] for p in service["spec"]["ports"] if p["name"] == "http")
    return f"http://{service['spec']['clusterIP']}:{port}/v1"


def ask(namespace: str, name: str, question: str, max_tokens: int = 64) -> Answer:
    """Stream one greedy chat completion and time it.

    Raises:
        ToolError: the server refused, or answered nothing.
    """
    base_url = service_url(namespace, name)
    client = openai.OpenAI(base_url=base_url, api_key="none", timeout=120)
    started = time.monotonic()
    arrivals: list[float] = []
    text, num_tokens = "", 0
    try:
        model = client.models.list().data[0].id
        for chunk in client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=max_tokens,
            stream=True,
            stream_options={"include_usage": True},
        ):
            if chunk.usage is not None:
                num_tokens = chunk.usage.completion_tokens
            if chunk.choices and chunk.choices[0].delta.content:
                arrivals.append(time.monotonic())
                text += chunk.choices[0].delta.content
    except openai.OpenAIError as refused:
        raise ToolError(f"{base_url}: {refused}") from refused
    if not arrivals:
        raise ToolError(f"{base_url}: an empty answer")
    decoding = arrivals[-1] - arrivals[0]
    return Answer(
        base_url=base_url,
        model=model,
        text=text,
        num_tokens=num_tokens,
        seconds_to_first_token=arrivals[0] - started,
        tokens_per_second=(num_tokens - 1) / decoding if decoding > 0 else 0.0,
    )
