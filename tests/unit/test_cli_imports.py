"""The imports of the plugin's program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.logins import Authority

PROGRAM = """
import os
from neuron_dra import cli
with cli._long_lived():
    from aiohttp import connector
print(len(connector._SSL_CONTEXT_VERIFIED.get_ca_certs()), os.environ.get("SSL_CERT_FILE"))
"""


STARTED = """
import sys
from neuron_dra import cli
try:
    cli.main(sys.argv[1:])
except SystemExit:
    pass
print("loaded", sorted({"asyncio", "msgspec", "grpc", "aiohttp", "yaml", "cel_expr_python"} & set(sys.modules)))
"""


@pytest.mark.parametrize("words", [("--help",), ("help", "why"), ("status", "--help")], ids=" ".join)
def test_help_loads_no_library(words: tuple[str, ...]) -> None:
    """(17.3) A command starts in less than 0.3 s."""
    done = subprocess.run([sys.executable, "-c", STARTED, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("is_set", [True, False])
def test_system_authorities_are_not_loaded(tmp_path: Path, is_set: bool) -> None:
    """(14.15) They need 1.7 MiB, and no connection of the plugin uses them."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    file = Authority(tmp_path / "pki").certificate
    environment = {key: value for key, value in os.environ.items() if key != "SSL_CERT_FILE"}
    environment |= {"SSL_CERT_FILE": str(file)} if is_set else {}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", str(file) if is_set else "None"]
