"""Certificates, keys, tokens and kubeconfig files; one CA signs them for the lifetime of the test bed."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hack.bed import packages
from hack.bed.errors import BedError
from hack.bed.layout import Layout

DAYS = "365"
SERVER_NAMES = (
    "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,"
    "DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:10.96.0.1"
)

# Users of the token file -> their groups. Nodes have certificates: the API server reads this file only once.
TOKEN_USERS = {
    "admin": "system:masters",
    "system:kube-scheduler": "",
    "system:kube-controller-manager": "",
}


def _openssl(*arguments: str, directory: Path, stdin: str | None = None) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=directory, input=stdin, capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    if done.returncode != 0:
        raise BedError(f"openssl {' '.join(arguments)} failed:\n{done.stderr}")


def _key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path.name, directory=path.parent)
    path.chmod(0o600)


def prepare(layout: Layout) -> None:
    """Write the CA, the API server's certificates, the service account key and the token file, once."""
    directory = layout.pki_dir
    if (directory / "tokens.csv").exists():
        return
    packages.require(packages.FOR_CONTROL_PLANE, "the certificates")
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    _key(directory / "ca.key")
    _openssl("req", "-x509", "-new", "-key", "ca.key", "-sha256", "-days", DAYS, "-subj", "/CN=testbed-ca",
             "-addext", "basicConstraints=critical,CA:TRUE",
             "-addext", "keyUsage=critical,keyCertSign,digitalSignature",
             "-out", "ca.crt", directory=directory)  # fmt: skip
    issue(layout, "apiserver", "/CN=kube-apiserver", f"subjectAltName={SERVER_NAMES}")
    issue(layout, "kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    _key(directory / "service-account.key")
    _openssl("ec", "-in", "service-account.key", "-pubout", "-out", "service-account.pub", directory=directory)
    lines = [
        f'{secrets.token_hex(16)},{user},{number},"{groups}"'
        for number, (user, groups) in enumerate(TOKEN_USERS.items())
    ]
    temporary = directory / ".tokens.csv"
    temporary.write_text("\n".join(lines) + "\n")
    temporary.chmod(0o600)
    temporary.replace(directory / "tokens.csv")


def issue(layout: Layout, name: str, subject: str, extension: str = "") -> None:
    """Write `name`.key and `name`.crt, signed by the CA for `subject`; usable as a server and as a client."""
    directory = layout.pki_dir
    if (directory / f"{name}.crt").exists():
        return
    _key(directory / f"{name}.key")
    _openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr", directory=directory)
    (directory / f"{name}.ext").write_text(
        "\n".join(["keyUsage=digitalSignature", "extendedKeyUsage=serverAuth,clientAuth", extension]) + "\n"
    )
    _openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-sha256", "-days", DAYS,
             "-set_serial", f"0x{secrets.token_hex(8)}", "-extfile", f"{name}.ext", "-out", f".{name}.crt",
             directory=directory)  # fmt: skip
    (directory / f".{name}.crt").replace(directory / f"{name}.crt")


def token(layout: Layout, user: str) -> str:
    for line in (layout.pki_dir / "tokens.csv").read_text().splitlines():
        value, name, *_ = line.split(",")
        if name == user:
            return value
    raise BedError(f"no token for {user}")


def write_kubeconfig(layout: Layout, path: Path, server: str, user: dict[str, str]) -> None:
    """Write a kubeconfig (as JSON, which is YAML) for `user`: {"token": ...} or {"client-certificate": ...}."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "clusters": [
            {"name": "testbed", "cluster": {"server": server, "certificate-authority": str(layout.pki_dir / "ca.crt")}}
        ],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "user"}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.chmod(0o600)
    temporary.replace(path)


def node_user(layout: Layout, node: str, addresses: Sequence[str]) -> dict[str, str]:
    """Return the kubeconfig user of a kubelet: a certificate like that of real kubelets, for client and server."""
    names = ",".join([f"DNS:{node}", *(f"IP:{address}" for address in addresses)])
    issue(layout, f"node-{node}", f"/O=system:nodes/CN=system:node:{node}", f"subjectAltName={names}")
    return {
        "client-certificate": str(layout.pki_dir / f"node-{node}.crt"),
        "client-key": str(layout.pki_dir / f"node-{node}.key"),
    }


def server_arguments(layout: Layout) -> Sequence[str]:
    """Return the API server's arguments for these files."""
    pki = layout.pki_dir
    return (
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--token-auth-file={pki}/tokens.csv",
        f"--service-account-key-file={pki}/service-account.pub",
        f"--service-account-signing-key-file={pki}/service-account.key",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
    )
