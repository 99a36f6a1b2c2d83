"""`forebay operator`: run the Kubernetes operator until it is told to stop."""

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any

import kopf

from forebay_operator import kinds
from forebay_operator.access import missing_rights
from forebay_operator.cache import Cache
from forebay_operator.controller import Controller
from forebay_operator.errors import ApiError
from forebay_operator.handlers import build_registry
from forebay_operator.health import HealthServer, trouble
from forebay_operator.kube import KubernetesApi
from forebay_operator.metrics import OperatorMetrics
from forebay_operator.observe import Observer
from forebay_operator.observed import Defaults
from forebay_operator.resync import Resync
from forebay_operator.scrape import Scraper
from forebay_operator.settings import OperatorSettings, SettingsError, settings_from
from forebay_operator.webhook import WebhookServer
from forebay_operator.work_queue import WorkQueue

logger = logging.getLogger("forebay_operator")

EXIT_FAILED = 1
EXIT_BAD_USE = 2
EXIT_NO_RIGHTS = 3

_EPILOG = """environment:
  FOREBAY_ENGINE_IMAGE        image of engine pods (required)
  FOREBAY_OPERATOR_IMAGE      image of the pods that read a model's facts: this very image (required)
  FOREBAY_IMAGE_PULL_POLICY   Always, IfNotPresent or Never (IfNotPresent)
  FOREBAY_WATCH_NAMESPACES    namespaces with commas; empty: all
  FOREBAY_HEALTH_PORT         port of /healthz and /metrics, 0: none (8080)
  FOREBAY_WEBHOOK_PORT        port of the admission webhook, 0: none (0)
  FOREBAY_WEBHOOK_CERTIFICATES  folder with its tls.crt and tls.key (/etc/forebay/webhook)
  FOREBAY_RESYNC_SECONDS      everything is looked at anew this often (300)
  FOREBAY_SCRAPE_SECONDS      pods are asked for progress and load this often (10)
  FOREBAY_WORKERS             services that are worked on at the same time (8)

exit status: 0 stopped; 1 no access to the cluster, or an internal failure; 2 bad use; 3 rights are missing

examples:
  forebay operator
  forebay operator --namespace models --namespace research
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="forebay operator",
        description="Run the operator: InferenceServices become pods that serve.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--namespace", action="append", metavar="NAME", help="watch this one only; may be repeated")
    result.add_argument(
        "--kubeconfig", metavar="FILE", help="access to the cluster; absent: KUBECONFIG, or the pod's own"
    )
    result.add_argument("--log-format", choices=("text", "json"), default="text", help="form of the log (text)")
    result.add_argument(
        "--log-level", choices=("debug", "info", "warning"), default="info", help="what is logged (info)"
    )
    return result


def main(argv: Sequence[str]) -> int:
    """Run the subcommand."""
    arguments = parser().parse_args(argv)
    if arguments.kubeconfig:
        os.environ["KUBECONFIG"] = arguments.kubeconfig
    try:
        settings = settings_from(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"forebay operator: {error}\n")
        return EXIT_BAD_USE
    if arguments.namespace:
        settings = dataclasses.replace(settings, namespaces=tuple(dict.fromkeys(arguments.namespace)))
    _configure_logging(arguments.log_format, arguments.log_level)
    try:
        return asyncio.run(run(settings))
    except SettingsError as error:
        logger.error("%s", error)
        return EXIT_BAD_USE
    except ApiError as error:
        logger.error("%s", error)
        return EXIT_FAILED


async def run(settings: OperatorSettings) -> int:
    """Run until a signal; the exit status.

    Raises:
        ApiError: the cluster cannot be reached at the start.
        SettingsError: a port cannot be had, or the webhook has no certificate.
    """
    kube = await KubernetesApi.connect()
    scraper = Scraper(settings.scrape_seconds)
    try:
        missing, optional = await missing_rights(kube, settings.namespaces)
        if missing:
            logger.error("the operator lacks rights; grant them and start it again:\n  %s", "\n  ".join(missing))
            return EXIT_NO_RIGHTS
        for right in optional:
            logger.warning("no right to %s %s: %s are not used", "/".join(right.verbs), right.resource, right.why)
        refused = {right.resource for right in optional}
        return await _operate(settings, kube, scraper, [k for k in kinds.WATCHED if k.plural not in refused])
    finally:
        await scraper.close()
        await kube.close()


async def _operate(
    settings: OperatorSettings, kube: KubernetesApi, scraper: Scraper, watched: Sequence[kinds.Kind]
) -> int:
    cache, queue = Cache(), WorkQueue()
    defaults = Defaults(
        engine_image=settings.engine_image,
        operator_image=settings.operator_image,
        image_pull_policy=settings.image_pull_policy,
        scrape_seconds=settings.scrape_seconds,
    )
    reads_nodes = kinds.NODE in watched
    observer = Observer(cache, kube, scraper, defaults, reads_nodes=reads_nodes)
    controller = Controller(kube, cache, queue, observer)
    resync = Resync(kube, cache, queue, watched, settings.namespaces, settings.resync_seconds)
    await resync.once()  # before any work: with half a cache, services would look as if their pods were gone
    metrics = OperatorMetrics(cache, queue, resync)
    health = HealthServer(lambda: trouble(queue, resync), metrics.exposition)
    handle = metrics.measured(controller.handle)
    webhook = WebhookServer(cache, defaults, reads_nodes=reads_nodes)
    if settings.webhook_port:
        await webhook.start(settings.webhook_port, settings.webhook_certificates)
    if settings.health_port:  # last: a pod is ready when it answers here
        await health.start(settings.health_port)
    tasks: set[asyncio.Task[Any]] = {
        asyncio.create_task(resync.for_ever(), name="resync"),
        asyncio.create_task(
            kopf.operator(
                registry=build_registry(controller, resync, watched),
                namespaces=settings.namespaces,
                clusterwide=not settings.namespaces,
                standalone=True,
            ),
            name="watches",
        ),
        *(asyncio.create_task(queue.work(handle), name=f"worker-{n}") for n in range(settings.workers)),
    }
    where = ", ".join(settings.namespaces) or "all namespaces"
    logger.info("watching %s; engine image %s", where, settings.engine_image)
    try:
        return await _until_one_ends(tasks)
    finally:
        await webhook.close()
        await health.close()


async def _until_one_ends(tasks: Collection[asyncio.Task[Any]]) -> int:
    """The watches end on SIGTERM, which kopf handles; when another task ends, the process does, to be restarted."""
    done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        task.cancel()
    await asyncio.wait(tasks, timeout=10)
    broken = [task for task in done if task.get_name() != "watches" or task.exception() is not None]
    for task in broken:
        logger.error("%s ended: %r", task.get_name(), None if task.cancelled() else task.exception())
    return EXIT_FAILED if broken else 0


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _configure_logging(form: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("kopf").setLevel("WARNING")
    logging.getLogger("aiohttp.access").setLevel("WARNING")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
