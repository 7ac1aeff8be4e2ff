"""Where the API server is, and as whom to talk to it."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from neuron_dra.errors import SettingsError
from neuron_dra.kube import kubeconfig

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class KubeConfig:
    """An API server's URL and how to prove who we are.

    `token` is asked before each request, because service account tokens are rotated on disk.
    """

    url: str
    token: Callable[[], str] | None = None
    tls: ssl.SSLContext | None = None


def from_settings(kube_api_server: str, kubeconfig_file: str, environ: Mapping[str, str]) -> KubeConfig:
    """Return the configuration for these settings; both empty means: inside a cluster.

    Raises SettingsError if there is no way to an API server.
    """
    if kube_api_server:
        return KubeConfig(kube_api_server.rstrip("/"))
    if kubeconfig_file:
        return from_kubeconfig(Path(kubeconfig_file))
    return in_cluster(environ)


def in_cluster(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> KubeConfig:
    """Return the configuration that Kubernetes gives every pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        raise SettingsError(
            "no API server: not in a cluster (KUBERNETES_SERVICE_HOST or the service account token is missing); "
            "set --kubeconfig"
        )
    tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    return KubeConfig(f"https://{f'[{host}]' if ':' in host else host}:{port}", _TokenFile(folder / "token"), tls)


class _TokenFile:
    """A token on disk, read again when the file changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        stat = os.stat(self._path)
        if (stat.st_mtime_ns, stat.st_ino) != self._seen:
            self._token = self._path.read_text().strip()
            self._seen = (stat.st_mtime_ns, stat.st_ino)
        return self._token


def from_kubeconfig(path: Path) -> KubeConfig:
    """Return the configuration of a kubeconfig's current context. Raises SettingsError."""
    login = kubeconfig.read(path)
    tls = None
    if login.url.startswith("https"):
        tls = ssl.create_default_context(cadata=login.authority or None)
        if not login.verify:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if login.certificate:
            with tempfile.NamedTemporaryFile("w") as file:  # mode 0600; the ssl module takes files alone
                file.write(login.certificate + "\n" + login.key)
                file.flush()
                tls.load_cert_chain(file.name)
    return KubeConfig(login.url, (lambda: login.bearer) if login.bearer else None, tls)
