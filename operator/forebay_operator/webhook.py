"""The HTTPS port that the API server asks before it stores an InferenceService."""

import json
import logging
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from forebay_operator import kinds, names
from forebay_operator.admission import Verdict, answer, judge
from forebay_operator.cache import Cache
from forebay_operator.observe import node_labels
from forebay_operator.observed import Defaults, Observed
from forebay_operator.settings import SettingsError

logger = logging.getLogger(__name__)

PATH = "/validate"
MAX_REVIEW_BYTES = 8 * 2**20
"""An object has at most 1.5 MiB, and a review carries two."""


class WebhookServer:
    """Answers reviews from what the cache knows. Belongs to the event loop of the operator."""

    def __init__(self, cache: Cache, defaults: Defaults, *, reads_nodes: bool = True) -> None:
        self._reads_nodes = reads_nodes
        self._cache = cache
        self._defaults = defaults
        self._runner: web.AppRunner | None = None

    async def start(self, port: int, certificates: Path) -> int:
        """Listen on all addresses with `tls.crt` and `tls.key` of a folder; returns the port.

        Raises:
            SettingsError: the files cannot be used, or the port cannot be had.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
        except OSError as error:  # ssl.SSLError is one, too
            raise SettingsError(f"FOREBAY_WEBHOOK_CERTIFICATES {certificates}: tls.crt, tls.key: {error}") from error
        app = web.Application(client_max_size=MAX_REVIEW_BYTES)
        app.router.add_post(PATH, self._validate)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._runner = runner
        try:
            await web.TCPSite(runner, "0.0.0.0", port, ssl_context=context).start()
        except OSError as error:
            raise SettingsError(f"cannot listen on FOREBAY_WEBHOOK_PORT {port}: {error.strerror}") from error
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _validate(self, request: web.Request) -> web.Response:
        try:
            review = json.loads(await request.read())
            asked, uid = review["request"], str(review["request"]["uid"])
        except (ValueError, KeyError, TypeError):
            raise web.HTTPBadRequest(text="not an AdmissionReview of admission.k8s.io/v1\n") from None
        verdict = self.verdict(asked)
        if verdict.refusal is not None:
            name = f"{asked.get('namespace')}/{asked.get('name')}"
            logger.info("%s: refused: %s: %s", name, verdict.refusal.reason, verdict.refusal.message)
        return web.json_response(answer(uid, verdict))

    def verdict(self, asked: Mapping[str, Any]) -> Verdict:
        """The verdict on one request, with what the cache knows about it."""
        body = asked.get("object") or {}
        metadata = {"namespace": asked.get("namespace", ""), "name": asked.get("name", ""), "uid": ""}
        metadata |= body.get("metadata", {})
        revisions = tuple(
            revision
            for revision in self._cache.all(kinds.CONTROLLER_REVISION)
            if revision["metadata"].get("namespace") == metadata["namespace"]
            and (revision["metadata"].get("labels") or {}).get(names.SERVICE_LABEL) == metadata["name"]
        )
        observed = Observed(
            now=datetime.now(UTC),
            service={**body, "metadata": metadata},
            defaults=self._defaults,
            profiles={profile["metadata"]["name"]: profile for profile in self._cache.all(kinds.ACCELERATOR_PROFILE)},
            nodes=node_labels(self._cache) if self._reads_nodes else None,
            revisions=revisions,
        )
        return judge(asked, observed, self._cache.all(kinds.INFERENCE_SERVICE))
