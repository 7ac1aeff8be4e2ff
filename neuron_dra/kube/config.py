"""The API server's URL and the credentials for it."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from neuron_dra.errors import SettingsError
from neuron_dra.kube import kubeconfig
from neuron_dra.kube.credentials import Credentials, Proof
from neuron_dra.kube.timing import DEFAULT_CLIENT_TIMING, CredentialTiming

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class KubeConfig:
    """An API server's URL and the credentials for it.

    `token` is called before each request, because service account tokens are rotated on disk. If `credentials` is set,
    it replaces `token` and `tls`. `namespace` and `cluster` are those of the kubeconfig's context, or empty.
    """

    url: str
    token: Callable[[], str] | None = None
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None
    namespace: str = ""
    cluster: str = ""

    @property
    def proof(self) -> Proof:
        """The credentials to use now."""
        if self.credentials is not None:
            return self.credentials.proof
        return Proof(self.token, self.tls)


def from_settings(
    kube_api_server: str,
    kubeconfig_file: str,
    environ: Mapping[str, str],
    timing: CredentialTiming = DEFAULT_CLIENT_TIMING.credentials,
) -> KubeConfig:
    """Return the configuration for these settings; if both are empty, that of a pod in a cluster.

    Raises SettingsError if they lead to no API server.
    """
    if kube_api_server:
        return KubeConfig(checked_url(kube_api_server, "--kube-api-server").rstrip("/"))
    if kubeconfig_file:
        return from_kubeconfig(kubeconfig_file, timing=timing)
    return in_cluster(environ, timing=timing)


def checked_url(url: str, source: str) -> str:
    """Return `url`. Raises SettingsError, which names `source`, if it is not a valid http or https URL."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        why = ""
    except ValueError as err:
        is_valid, why = False, f" ({err})"
    if not is_valid:
        raise SettingsError(f"{source}: invalid API server URL {url!r}{why}; write https://host:port")
    return url


def in_cluster(
    environ: Mapping[str, str],
    folder: Path = SERVICE_ACCOUNT,
    timing: CredentialTiming = DEFAULT_CLIENT_TIMING.credentials,
) -> KubeConfig:
    """Return the configuration that Kubernetes gives every pod: environment, service account token and authority.

    Raises SettingsError outside of a cluster.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        raise SettingsError(
            "no API server: this is not a pod in a cluster (KUBERNETES_SERVICE_HOST or the service account token is "
            "missing); set --kubeconfig"
        )
    token = _TokenFile(folder / "token")

    def proof() -> Proof:
        authority = folder / "ca.crt"
        return Proof(token, ssl.create_default_context(cafile=str(authority)), files=(authority,))

    async def read_again() -> Proof:
        return proof()

    url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    return KubeConfig(url, credentials=Credentials(proof(), read_again, timing=timing))


class _TokenFile:
    """A token on disk, read again after the file has changed. A call returns it; raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        stat = os.stat(self._path)
        if (stat.st_mtime_ns, stat.st_ino) != self._seen:
            self._token = self._path.read_bytes().decode("ascii", errors="replace").strip()
            self._seen = (stat.st_mtime_ns, stat.st_ino)
        return self._token


def from_kubeconfig(
    paths: Path | str, context: str = "", *, timing: CredentialTiming = DEFAULT_CLIENT_TIMING.credentials
) -> KubeConfig:
    """Return the configuration of a kubeconfig's context, by default the current one.

    `paths` may be several files, as in KUBECONFIG: `a:b`. Raises SettingsError if the files cannot be used.
    """
    where = f"--kubeconfig {paths}"
    login = kubeconfig.read(str(paths), context)
    checked_url(login.url, where)

    async def read_again() -> Proof:
        new_login = await kubeconfig.read_again(str(paths), context, limit_s=timing.login_s)
        if new_login.url != login.url:
            raise SettingsError(f"--kubeconfig {paths} now has another API server, {new_login.url}; restart to use it")
        return _proof(new_login, where)

    credentials = Credentials(_proof(login, where), read_again, timing=timing)
    return KubeConfig(login.url, credentials=credentials, namespace=login.namespace, cluster=login.cluster)


def _proof(login: kubeconfig.Login, where: str) -> Proof:
    """Return the credentials of a login, with a TLS context for https. Raises SettingsError with `where`."""
    tls = _tls(login, where) if login.url.startswith("https") else None
    token = (lambda: login.bearer) if login.bearer else None
    return Proof(token, tls, login.expires, tuple(map(Path, login.files)))


def _tls(login: kubeconfig.Login, where: str) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cadata=login.authority or None)
    except (ssl.SSLError, ValueError) as err:
        what = "its certificate-authority-data, or certificate-authority, is no certificate"
        raise SettingsError(f"{where}: {what}: {_said(err)}") from err
    if not login.verify:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if login.certificate:
        with tempfile.NamedTemporaryFile("w") as file:  # mode 0600; the ssl module only reads files
            file.write(login.certificate + "\n" + login.key)
            file.flush()
            try:
                tls.load_cert_chain(file.name)
            except ssl.SSLError as err:
                what = "its client certificate and key are not those of one login"
                raise SettingsError(f"{where}: {what}: {_said(err)}") from err
    return tls


def _said(err: Exception) -> str:
    """Return the words of OpenSSL without its place in a file of C."""
    return str(err).partition(" (_ssl.c")[0]
