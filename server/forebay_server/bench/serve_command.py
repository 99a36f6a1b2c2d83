"""`forebay bench serve`: check the endpoint, warm it up, put the load on it, tell what came."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from forebay_server.bench.client import EndpointClient, EndpointError, Timeouts
from forebay_server.bench.load import Load, LoadPlan, Sender, as_plain
from forebay_server.bench.load_metrics import load_figures
from forebay_server.bench.records import RequestRecord
from forebay_server.bench.serve_arguments import parse
from forebay_server.bench.serve_report import as_json, as_text
from forebay_server.bench.workload import (
    FileWorkload,
    Prompt,
    PromptForm,
    RandomWorkload,
    WorkloadError,
    read_workload,
    request_body,
)

OK, SOME_FAILED, BAD_USE, NOBODY_ANSWERS, INTERRUPTED = 0, 1, 2, 3, 130
_WARM_UP_SEED = 1 << 20
"""Added to the seed: the warm-up leaves nothing in a prefix cache that the load would find."""
_REFUSED = ("http 400", "http 422")


def main(argv: Sequence[str]) -> int:
    """Run `forebay bench serve` and return its exit code."""
    options = parse(argv)
    records: list[RequestRecord] = []
    settings: dict[str, Any] = {}
    try:
        status = asyncio.run(_measure(options, records, settings))
    except (EndpointError, WorkloadError) as error:
        sys.stderr.write(f"forebay bench serve: {error}\n")
        return NOBODY_ANSWERS if isinstance(error, EndpointError) else BAD_USE
    except KeyboardInterrupt:
        status = INTERRUPTED
    ended = [record for record in records if record.sent]
    if not ended:
        sys.stderr.write("forebay bench serve: no request was sent\n")
        return status or NOBODY_ANSWERS
    _show(options, ended, settings)
    return status


async def _measure(options: argparse.Namespace, records: list[RequestRecord], settings: dict[str, Any]) -> int:
    """Fill `records`, which has what is known also when this is interrupted."""
    timeouts = Timeouts(options.connect_timeout, options.idle_timeout, options.request_timeout)
    client = EndpointClient(options.base_url, options.endpoint, options.api_key, timeouts, time.perf_counter)
    try:
        model = options.model or await client.first_model()

        async def send(prompt: Prompt, record: RequestRecord) -> None:
            body = request_body(
                prompt, model, is_chat=options.endpoint == "chat", ignore_eos=options.ignore_eos, extra={}
            )
            await client.send(body, record)

        form = await _find_form(options, send)
        settings |= _settings(options, model, form)
        plan = LoadPlan(
            num_requests=options.num_requests,
            duration=options.duration,
            concurrency=options.concurrency,
            rate=options.rate,
            burst_size=options.burst_size,
            burst_interval=options.burst_interval,
            max_concurrency=options.max_concurrency,
            seed=options.seed,
        )
        with tqdm(total=options.num_requests, unit="request", disable=None) as progress:

            def on_end(_: RequestRecord) -> None:
                progress.update()

            load = Load(plan, _workload(options, form, options.seed).prompts(), send, on_end)
            load.records = records
            await load.run()
        if load.server_is_gone:
            sys.stderr.write("forebay bench serve: the server cannot be reached any more; the load ended early\n")
            return NOBODY_ANSWERS
        if not any(record.is_ok for record in records):
            return NOBODY_ANSWERS
        return OK if all(record.is_ok for record in records) else SOME_FAILED
    finally:
        await client.close()


async def _find_form(options: argparse.Namespace, send: Sender) -> PromptForm:
    """Send the warm-up requests; those tell whether the endpoint takes token ids, and whether it works at all.

    Raises:
        EndpointError: it does not answer.
    """
    wanted = options.prompt_form
    form: PromptForm = "text" if wanted == "text" or options.endpoint == "chat" else "ids"
    for number in range(options.warmup):
        record = await _warm_up(options, form, send, number)
        if record.error in _REFUSED and form == "ids" and wanted == "auto" and options.prompts is None:
            form = "text"
            record = await _warm_up(options, form, send, number)
        if record.error is not None:
            raise EndpointError(f"the warm-up request failed: {record.error}: {record.error_detail}")
    return form


async def _warm_up(options: argparse.Namespace, form: PromptForm, send: Sender, number: int) -> RequestRecord:
    record = RequestRecord(number, time.perf_counter())
    prompts = _workload(options, form, options.seed + _WARM_UP_SEED + number).prompts()
    await send(next(prompts), record)
    return record


def _workload(options: argparse.Namespace, form: PromptForm, seed: int) -> RandomWorkload | FileWorkload:
    if options.prompts is not None:
        return read_workload(options.prompts, options.output_tokens, seed, is_chat=options.endpoint == "chat")
    return RandomWorkload(
        form=form,
        prompt_lengths=options.prompt_tokens,
        output_lengths=options.output_tokens,
        vocab_size=options.vocab_size,
        seed=seed,
        shared_prefix_tokens=options.shared_prefix_tokens,
        num_shared_prefixes=options.shared_prefixes,
    )


def _settings(options: argparse.Namespace, model: str, form: PromptForm) -> dict[str, Any]:
    """What was asked for, to stand beside the figures."""
    if options.concurrency is not None:
        arrivals = f"closed loop of {options.concurrency}"
    elif options.rate is not None:
        arrivals = f"Poisson, {options.rate:g} a second"
    else:
        arrivals = f"bursts of {options.burst_size} every {options.burst_interval:g} s"
    return {
        "base_url": options.base_url,
        "model": model,
        "endpoint": options.endpoint,
        "arrivals": arrivals,
        "num_requests": options.num_requests,
        "duration": options.duration,
        "prompts": options.prompts or f"random {form}",
        "prompt_tokens": repr(options.prompt_tokens),
        "output_tokens": repr(options.output_tokens),
        "shared_prefix_tokens": options.shared_prefix_tokens,
        "ignore_eos": options.ignore_eos,
        "seed": options.seed,
        "slo": options.slo[0] if options.slo else None,
    }


def _show(options: argparse.Namespace, records: list[RequestRecord], settings: dict[str, Any]) -> None:
    objectives = options.slo[1] if options.slo else None
    figures = load_figures(records, objectives)
    details = {record.error: record.error_detail for record in reversed(records) if record.error is not None}
    if options.output == "json":
        sys.stdout.write(json.dumps(as_json(settings, figures, details), indent=2) + "\n")
    else:
        sys.stdout.write(as_text(settings, figures, details) + "\n")
    if options.requests_file is not None:
        lines = [json.dumps(as_plain(record)) + "\n" for record in records]
        Path(options.requests_file).write_text("".join(lines))
    if options.png is not None:
        from forebay_server.bench.serve_picture import draw

        draw(f"{settings['model']}: {settings['arrivals']}", records, objectives, Path(options.png))
