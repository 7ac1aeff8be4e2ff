"""Validating webhooks that get reviews from the test bed's API server and answer none of them."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hack.bed import pki
from hack.bed.real_cluster import BedError, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj

NAME = "silent-webhook"
TIMEOUT_S = 30
"""The longest that the API server allows. The controller gives up on its requests before."""
PROBE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}


@dataclass(frozen=True, slots=True)
class Review:
    """A write that the API server asked about: by whom, in which namespace, and what, such as `UPDATE nodes/status`."""

    user: str
    namespace: str
    write: str


@dataclass(slots=True)
class SilentWebhook:
    """A server on a port of 127.0.0.1 in the test bed's network.

    - `reviews`: what it was asked.
    - `probed`: the names of the webhooks that were asked about a probe, so the API server knows them.
    """

    bed: TestBed
    port: int
    reviews: list[Review] = field(default_factory=list)
    probed: set[str] = field(default_factory=set)

    def follow(self, path: str, request: Obj) -> None:
        """Remember a review that arrived at a path."""
        if path.startswith("/probe/"):
            self.probed.add(path.removeprefix("/probe/"))
            return
        resource = "/".join(filter(None, (request["resource"]["resource"], request.get("subResource", ""))))
        user, namespace = request["userInfo"]["username"], request.get("namespace", "")
        self.reviews.append(Review(user, namespace, f"{request['operation']} {resource}"))

    def writes(self, user: str) -> set[tuple[str, str]]:
        """Return namespace and write of all reviews of a user's writes."""
        return {(review.namespace, review.write) for review in list(self.reviews) if review.user == user}

    @contextlib.contextmanager
    def asked(self, name: str, rules: Sequence[Obj], probed: Namespace, *, everywhere: bool = False) -> Iterator[None]:
        """Let the API server ask for writes by these rules in a namespace, or everywhere; return when it does.

        No ConfigMap can be created in the namespace `probed` until the end of the block.
        """
        bed, whole = probed.bed, f"{name}-{probed.name}"
        chosen = {"matchLabels": {"kubernetes.io/metadata.name": probed.name}}
        webhooks = [
            self._webhook("asks", f"/{whole}", rules, {} if everywhere else chosen),
            self._webhook("probes", f"/probe/{whole}", [PROBE], chosen),
        ]
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": whole},
            "webhooks": webhooks,
        }
        bed.kubectl("apply", "-f", "-", stdin=json.dumps(configuration))
        try:
            eventually(f"the API server asks {whole}", lambda: self._is_asked(probed, whole))
            yield
        finally:
            bed.kubectl("delete", "validatingwebhookconfiguration", whole)

    def _webhook(self, name: str, path: str, rules: Sequence[Obj], namespaces: Obj) -> Obj:
        trust = base64.b64encode((self.bed.where.pki_dir / "ca.crt").read_bytes()).decode()
        return {
            "name": f"{name}.silent.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": trust},
            "rules": list(rules),
            "namespaceSelector": namespaces,
            "failurePolicy": "Fail",
            "timeoutSeconds": TIMEOUT_S,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }

    def _is_asked(self, probed: Namespace, whole: str) -> bool:
        with contextlib.suppress(BedError):
            probed.kubectl("create", "configmap", "probe", "--dry-run=server", "--request-timeout=1s")
        return whole in self.probed


@contextlib.contextmanager
def silent_webhook(bed: TestBed) -> Iterator[SilentWebhook]:
    """Run the server until the end of the block."""
    pki.issue(bed.where, NAME, f"/CN={NAME}", "subjectAltName=IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(bed.where.pki_dir / f"{NAME}.crt", bed.where.pki_dir / f"{NAME}.key")
    with bed.inside():
        server = _Server(("127.0.0.1", 0), _Silence)
    # Each handshake is in the thread of its connection: one that stops half-way holds up no other.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.webhook = SilentWebhook(bed, server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=[0.05], name=NAME)
    thread.start()
    try:
        yield server.webhook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # connections of many writes at once
    webhook: SilentWebhook


class _Silence(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        """Read a review, and keep its connection until the API server gives up."""
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.webhook.follow(self.path.partition("?")[0], content["request"])
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.rfile.read(1)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
