"""Kubeconfigs whose credentials expire: a login program with tokens or certificates, and certificates in files.

    login = Login(folder, api.url)
    login.gives_token("one", life_s=900)
    config.from_kubeconfig(login.kubeconfig)

The program prints the folder's file `answer` and counts its runs. Certificates are made by the command `openssl`.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import ssl
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

import yaml

API_VERSION: Final = "client.authentication.k8s.io/v1"
_PROGRAM: Final = """
    #!{python}
    import pathlib, sys
    folder = pathlib.Path(__file__).parent
    with open(folder / "calls", "a") as calls:
        calls.write("x")
    answer = folder / "answer"
    if not answer.exists():
        sys.exit("the login program has no answer")
    print(answer.read_text())
"""


class Login:
    """A kubeconfig with a login program. `ca` is the certificate of the server's authority, for https."""

    def __init__(self, folder: Path, url: str, *, ca: Path | None = None) -> None:
        self._folder = folder
        program = folder / "login"
        program.write_text(textwrap.dedent(_PROGRAM).lstrip().format(python=sys.executable))
        program.chmod(0o755)
        execute = {"apiVersion": API_VERSION, "command": str(program), "interactiveMode": "IfAvailable"}
        self.kubeconfig = write_kubeconfig(folder / "kubeconfig", url, {"exec": execute}, ca=ca)

    @property
    def calls(self) -> int:
        """The number of runs of the program."""
        try:
            return len((self._folder / "calls").read_text())
        except FileNotFoundError:
            return 0

    def gives_token(self, token: str, *, life_s: float = 0.0) -> None:
        """Return this token from now on; with `life_s` 0, without an expiration time."""
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=life_s)
        expiry = {"expirationTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ")} if life_s else {}
        self._gives({"token": token, **expiry})

    def gives_certificate(self, certificate: Path, key: Path) -> None:
        """Return this certificate from now on."""
        self._gives({"clientCertificateData": certificate.read_text(), "clientKeyData": key.read_text()})

    def fails(self) -> None:
        """Fail from now on."""
        (self._folder / "answer").unlink(missing_ok=True)

    def _gives(self, status: dict[str, Any]) -> None:
        fresh = self._folder / "answer.new"
        fresh.write_text(json.dumps({"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status}))
        os.rename(fresh, self._folder / "answer")


def write_kubeconfig(path: Path, url: str, user: dict[str, Any], *, ca: Path | None = None) -> Path:
    """Write a kubeconfig with `user` as its user; return its path."""
    authority = {"certificate-authority": str(ca)} if ca else {}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url, **authority}}],
        "users": [{"name": "here", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
    }
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


class Authority:
    """A certificate authority in `folder`, made by `openssl`, or a copy of the authority `like`."""

    def __init__(self, folder: Path, name: str = "authority", *, like: tuple[Path, Path] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.certificate = folder / "ca.crt"
        (folder / "index").touch()
        (folder / "settings").write_text(
            textwrap.dedent(
                f"""
                [ca]
                default_ca = here
                [here]
                dir = {folder}
                database = {folder}/index
                new_certs_dir = {folder}
                certificate = {folder}/ca.crt
                private_key = {folder}/ca.key
                rand_serial = yes
                default_md = sha256
                policy = any
                unique_subject = no
                copy_extensions = copy
                [any]
                commonName = supplied
                organizationName = optional
                """
            )
        )
        if like is not None:
            for file, source in zip(("ca.crt", "ca.key"), like, strict=True):
                shutil.copyfile(source, folder / file)
            return
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        self._openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", f"/CN={name}")

    def issue(
        self, name: str, *, subject: str = "", life_s: float = 3600.0, begin_s: float = -60.0
    ) -> tuple[Path, Path]:
        """Return certificate and key of `name` for 127.0.0.1, valid from `begin_s` to `life_s` seconds from now."""
        now = datetime.datetime.now(datetime.UTC)
        begin, end = ((now + datetime.timedelta(seconds=s)).strftime("%Y%m%d%H%M%SZ") for s in (begin_s, life_s))
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        asked = ("-subj", subject or f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
        self._openssl("req", *new, *asked, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        times = ("-startdate", begin, "-enddate", end)
        signed = ("-in", f"{name}.csr", "-out", f"{name}.crt", "-batch", "-notext")
        self._openssl("ca", "-config", "settings", *times, *signed)
        return self._folder / f"{name}.crt", self._folder / f"{name}.key"

    def server_context(self, *, life_s: float = 3600.0) -> ssl.SSLContext:
        """Return the TLS context of a server on 127.0.0.1 that accepts client certificates of this authority.

        As API servers do, it completes the handshake for an expired certificate: the client gets a 401, not a closed
        connection.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue("server", life_s=life_s))
        context.load_verify_locations(self.certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= _NO_CHECK_TIME
        return context

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"openssl {' '.join(arguments)} failed: {done.stderr}")


_NO_CHECK_TIME: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which the ssl module does not define
