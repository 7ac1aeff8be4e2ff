"""Reads a kubeconfig's current context with kubernetes-asyncio, logins by program and OIDC included.

The library is imported by a process of its own, `python -m neuron_dra.kube.kubeconfig FILE`: it costs 40 MiB, which
end with that process, and we run for months.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from neuron_dra.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Login:
    """Where the API server is and how to prove who we are; the certificates and the key are PEM, empty for none."""

    url: str
    authority: str
    verify: bool
    certificate: str
    key: str
    bearer: str


def read(path: Path) -> Login:
    """Return what the file says. Raises SettingsError. A login program may talk to the person who started us."""
    if not path.exists():
        raise SettingsError(f"--kubeconfig {path}: no such file")
    command = [sys.executable, "-P", "-m", "neuron_dra.kube.kubeconfig", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"error": f"its reader ended with exit code {done.returncode}"}
    if "error" in answer:
        raise SettingsError(f"--kubeconfig {path}: {answer['error']}")
    return Login(**answer)


def _load(path: str) -> Login:
    """Raises ImportError, or ConfigException and others of the library, which say what is wrong with the file."""
    from kubernetes_asyncio import client, config

    loaded = client.Configuration()
    asyncio.run(config.load_kube_config(config_file=path, client_configuration=loaded))
    return Login(
        url=str(loaded.host).rstrip("/"),
        authority=_text(loaded.ssl_ca_cert),
        verify=bool(loaded.verify_ssl),
        certificate=_text(loaded.cert_file),
        key=_text(loaded.key_file),
        bearer=str(loaded.api_key.get("BearerToken", "")).removeprefix("Bearer "),
    )


def _text(path: str | None) -> str:
    return Path(path).read_text() if path else ""


def main(path: str) -> int:
    """Print the login as JSON, or {"error": why}."""
    try:
        answer = asdict(_load(path))
    except ImportError as err:
        answer = {"error": f"{err}; reading a kubeconfig needs the package kubernetes-asyncio"}
    except Exception as err:  # whatever it is, the file cannot be used, and the text is for its author
        answer = {"error": f"it cannot be used: {err!s}"}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
