"""What signs a release on GitHub without a key: a token service, and Sigstore's Fulcio, Rekor and timestamp authority.

All run in one network namespace: some listen on every address. Not here: the log of Fulcio's certificates.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hack.bed import network
from hack.bed.layout import Layout
from tests.tools import small_release  # noqa: F401 - sets the import path

READY_S = 60
ISSUER, FULCIO, REKOR, TIMESTAMPS = (f"http://127.0.0.1:{port}" for port in (8001, 8002, 8003, 8004))
SERVICES = {
    "fulcio": f"serve --ca ephemeralca --config-path fulcio.json --host 127.0.0.1 --port {FULCIO[-4:]} --ct-log-url= "
    f"--grpc-host 127.0.0.1 --grpc-port 8012 --metrics-port 2113",
    "rekor-server": f"serve --http-port {REKOR[-4:]} --grpc-port 8013 --http-metrics-port 2114 --hostname 127.0.0.1 "
    "--storage-dir log --signer-filepath rekor.key --checkpoint-interval 1s",
    "timestamp-server": f"serve --host 127.0.0.1 --port {TIMESTAMPS[-4:]} --disable-ntp-monitoring",
}


@dataclass(frozen=True)
class Signing:
    """How to sign and verify with these services."""

    environment: dict[str, str]
    """What GitHub gives a job that may ask for its identity token."""
    config: Path
    trust: Path


def openssl(folder: Path, command: str, given: bytes = b"") -> bytes:
    words = ["openssl", *command.split()]
    return subprocess.run(words, cwd=folder, input=given, capture_output=True, timeout=60, check=True).stdout


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class TokenService(http.server.BaseHTTPRequestHandler):
    """Issues signed tokens with the claims of one workflow run, as GitHub does for a job."""

    folder: ClassVar[Path]
    claims: ClassVar[dict[str, str]]

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.answer()).encode())

    def answer(self) -> object:
        if self.path == "/.well-known/openid-configuration":
            urls = {
                "jwks_uri": f"{ISSUER}/keys",
                "token_endpoint": f"{ISSUER}/",
                "authorization_endpoint": f"{ISSUER}/",
            }
            return {"issuer": ISSUER, "id_token_signing_alg_values_supported": ["RS256"], **urls}
        if self.path == "/keys":
            modulus = openssl(self.folder, "rsa -in issuer.key -modulus -noout").decode().strip().partition("=")[2]
            key = {"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", "e": "AQAB"}
            return {"keys": [{**key, "n": encoded(bytes.fromhex(modulus))}]}
        assert self.path == "/token?&audience=sigstore", self.path
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": "sigstore", "sub": "repo", "iat": now, "exp": now + 300, **self.claims}
        signed = f"{encoded(json.dumps({'alg': 'RS256', 'kid': '1'}).encode())}.{encoded(json.dumps(claims).encode())}"
        return {"value": f"{signed}.{encoded(openssl(self.folder, 'dgst -sha256 -sign issuer.key', signed.encode()))}"}

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def claims(workflow: str, commit: str) -> dict[str, str]:
    """Return the claims of a workflow's first run; `workflow` is OWNER/REPOSITORY/PATH@REF."""
    owner, name, _ = workflow.split("/", 2)
    references = {"job_workflow_ref": workflow, "workflow_ref": workflow, "ref": workflow.partition("@")[2]}
    commits = dict.fromkeys(("sha", "job_workflow_sha", "workflow_sha"), commit)
    ids = dict.fromkeys(("repository_id", "repository_owner_id", "run_id", "run_attempt"), "1")
    names = {"repository": f"{owner}/{name}", "repository_owner": owner, "repository_visibility": "public"}
    what = {"workflow": "release", "event_name": "push", "runner_environment": "github-hosted"}
    return {**references, **commits, **ids, **names, **what}


@contextlib.contextmanager
def running(programs: Path, folder: Path, where: Layout, workflow: str, commit: str) -> Iterator[Signing]:
    """Run the services in the network namespace of `where`, which is up, until the block ends."""
    openssl(folder, "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out issuer.key")
    openssl(folder, "genpkey -algorithm ed25519 -out rekor.key")
    openssl(folder, "pkey -in rekor.key -pubout -out rekor.pub")
    issuer = {"IssuerURL": ISSUER, "ClientID": "sigstore", "Type": "github-workflow"}
    (folder / "fulcio.json").write_text(json.dumps({"OIDCIssuers": {ISSUER: issuer}}))
    handler = type("Tokens", (TokenService,), {"folder": folder, "claims": claims(workflow, commit)})
    with contextlib.ExitStack() as stack:
        with network.inside(where):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", int(ISSUER[-4:])), handler)
        stack.enter_context(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        prefix = network.enter(where)
        for name, words in SERVICES.items():
            stack.enter_context(_service([*prefix, str(programs / name), *words.split()], folder, name))
        for url, name in ((f"{FULCIO}/api/v1/rootCert", "fulcio"), (f"{TIMESTAMPS}/api/v1/timestamp/certchain", "tsa")):
            (folder / f"{name}.pem").write_bytes(_eventually(where, url))
        _eventually(where, f"{REKOR}/healthz")
        yield _configured(programs / "cosign", folder)


@contextlib.contextmanager
def _service(words: Sequence[str], folder: Path, name: str) -> Iterator[None]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _eventually(where: Layout, url: str) -> bytes:
    until = time.monotonic() + READY_S
    while not network.answers(where, url):
        assert time.monotonic() < until, f"no answer: {url}"
        time.sleep(0.1)
    return network.get(where, url)[1]


def _configured(cosign: Path, folder: Path) -> Signing:
    """Write the files that tell cosign which services sign, and which keys and certificates to trust."""
    more = "api-version={},start-time=2024-01-01T00:00:00Z,operator=test"
    signing = {"fulcio": (FULCIO, 1), "oidc-provider": (ISSUER, 1), "rekor": (REKOR, 2),
               "tsa": (f"{TIMESTAMPS}/api/v1/timestamp", 1)}  # fmt: skip
    words = [f"--{name}=url={url},{more.format(version)}" for name, (url, version) in signing.items()]
    words += ["--rekor-config=ANY", "--tsa-config=ANY"]
    trusted = [
        f"--fulcio=url={FULCIO},certificate-chain=fulcio.pem",
        f"--tsa=url={TIMESTAMPS},certificate-chain=tsa.pem",
        f"--rekor=url={REKOR},public-key=rekor.pub,start-time=2024-01-01T00:00:00Z,origin=127.0.0.1",
    ]
    found = Signing(
        {"ACTIONS_ID_TOKEN_REQUEST_URL": f"{ISSUER}/token?", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "given"},
        folder / "signing.json",
        folder / "trust.json",
    )
    for what, given, out in (("signing-config", words, found.config), ("trusted-root", trusted, found.trust)):
        subprocess.run([cosign, what, "create", *given, "--out", out], cwd=folder, timeout=60, check=True)
    return found
