"""Reads a context of a kubeconfig with kubernetes-asyncio, including exec plugins and OIDC.

A separate process, `python -m neuron_dra.kube.kubeconfig FILE [CONTEXT]`, imports the library: it takes 40 MiB, which
are freed when that process ends, while this one runs for months.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neuron_dra.errors import SettingsError
from neuron_dra.kube import certificates


@dataclass(frozen=True, slots=True)
class Login:
    """The API server's URL and the credentials for it; certificates and key are PEM, empty for none.

    `expires` is in seconds since 1970, 0 if unknown. `files` are the files that the login was read from.
    """

    url: str
    authority: str
    verify: bool
    certificate: str
    key: str
    bearer: str
    expires: float = 0.0
    files: tuple[str, ...] = ()
    namespace: str = ""
    cluster: str = ""


def read(paths: str, context: str = "") -> Login:
    """Return the login of the files' context, by default the current one. Raises SettingsError if they cannot be used.

    A login program may prompt on the terminal.
    """
    if not any(Path(path).exists() for path in paths.split(os.pathsep) if path):
        raise SettingsError(f"--kubeconfig {paths}: no such file")
    completed = subprocess.run(_command(paths, context), stdout=subprocess.PIPE, text=True, check=False)
    return _login(paths, completed.stdout, completed.returncode)


async def read_again(paths: str, context: str = "", *, limit_s: float) -> Login:
    """Return the login as `read` does, without a terminal. Raises SettingsError, also after `limit_s` seconds."""
    process = await asyncio.create_subprocess_exec(
        *_command(paths, context),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
    except TimeoutError:
        raise SettingsError(f"--kubeconfig {paths}: the login took more than {limit_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the login program
            await process.wait()
    return _login(paths, output.decode(errors="replace"), process.returncode or 0)


def _command(paths: str, context: str) -> list[str]:
    return [sys.executable, "-P", "-m", "neuron_dra.kube.kubeconfig", paths, *([context] if context else [])]


def _login(paths: str, text: str, code: int) -> Login:
    """Return the login in the reader's output. Raises SettingsError if it has an error instead."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {"error": f"the process that reads it ended with exit code {code}"}
    if "error" in answer:
        raise SettingsError(f"--kubeconfig {paths}: {answer['error']}")
    return Login(**{**answer, "files": tuple(answer["files"])})


def _load(paths: str, context: str) -> Login:
    """Return the login, read by kubernetes-asyncio.

    Raises ImportError, or an error of the library, such as ConfigException, that says what is wrong with the file.
    """
    from kubernetes_asyncio import client, config
    from kubernetes_asyncio.config import ConfigException

    loaded = client.Configuration()
    loader = asyncio.run(
        config.load_kube_config(config_file=paths, context=context or None, client_configuration=loaded)
    )
    bearer = str(loaded.api_key.get("BearerToken", "")).removeprefix("Bearer ")
    certificate = _text(loaded.cert_file)
    if not bearer and not certificate and loader._user is not None and loader._user.safe_get("exec"):
        # Release 32 of the library only logs that the program failed.
        raise ConfigException("the login program of the user returned no credentials")
    ends = [
        loader.exec_plugin_expiry.timestamp() if hasattr(loader, "exec_plugin_expiry") else 0.0,
        certificates.not_after(certificate),
        _end_of(bearer),
    ]
    own_files = [os.path.abspath(path) for path in paths.split(os.pathsep) if path]
    return Login(
        url=str(loaded.host).rstrip("/"),
        authority=_text(loaded.ssl_ca_cert),
        verify=bool(loaded.verify_ssl),
        certificate=certificate,
        key=_text(loaded.key_file),
        bearer=bearer,
        expires=min((end for end in ends if end), default=0.0),
        files=(*own_files, *_named_files(loader)),
        namespace=_of_context(loader, "namespace"),
        cluster=_of_context(loader, "cluster"),
    )


def _of_context(loader: Any, field: str) -> str:
    """Return what the context in use names in a field, empty if it names nothing."""
    return str(loader._current_context["context"].safe_get(field) or "")


def _named_files(loader: Any) -> list[str]:
    """Return the paths of the files that the context in use refers to, resolved relative to the kubeconfig."""
    paths = []
    for section, keys in (
        (loader._cluster, ("certificate-authority",)),
        (loader._user, ("client-certificate", "client-key", "tokenFile")),
    ):
        for key in keys:
            name = section.safe_get(key) if section is not None else None
            if name and not section.safe_get(f"{key}-data"):
                paths.append(os.path.join(loader._get_base_path(section.path), str(name)))
    return paths


def _end_of(bearer: str) -> float:
    """Return when a token expires, in seconds since 1970, from the `exp` claim of a JSON Web Token; 0 if unknown."""
    with contextlib.suppress(ValueError, IndexError, TypeError, AttributeError):
        text = bearer.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))).get("exp") or 0.0)
    return 0.0


def _text(path: str | None) -> str:
    if path:
        return Path(path).read_text()
    return ""


def main(paths: str, context: str = "") -> int:
    """Print the login as JSON, or {"error": reason}, and return 0."""
    try:
        answer = asdict(_load(paths, context))
    except ImportError as err:
        answer = {"error": f"{err}; reading a kubeconfig needs the package kubernetes-asyncio"}
    except Exception as err:  # any error means that the file cannot be used
        answer = {"error": f"it cannot be used: {err!s}"}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
