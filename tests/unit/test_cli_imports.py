"""The imports of the programs: a command imports what its answer needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_dra.ask.world import imagined
from neuron_dra.core.wire import Obj
from tests.support import small_clusters
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


ROOMS = """
import sys
from neuron_dra import cli
cli.main(sys.argv[1:])
ours = ("why", "world.imagined", "read.stream")
rooms = (*(f"neuron_dra.ask.{name}" for name in ours), "cel_expr_python", "tarfile")
print("loaded", sorted(name for name in rooms if name in sys.modules))
"""


def loaded_by_status(folder: Path, *more: Obj) -> str:
    """Return which of the large rooms `status` imports for two nodes and other objects, as the last line has it."""
    file = folder / "objects.json"
    file.write_text(json.dumps({"kind": "List", "items": [*imagined.fleet("2 x trn2.48xlarge", "--fleet"), *more]}))
    command = [sys.executable, "-c", ROOMS, "status", "--snapshot", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


def test_status_of_a_healthy_fleet_imports_no_causes(tmp_path: Path) -> None:
    """(33, 5) Without a pod that waits, neither the rooms of `why` nor the engine of selectors are imported."""
    assert loaded_by_status(tmp_path) == "loaded []"


def test_status_of_a_waiting_pod_imports_what_its_cause_needs(tmp_path: Path) -> None:
    pod = small_clusters.pod("p", "t")
    template = small_clusters.template("t", count=32)
    assert loaded_by_status(tmp_path, template, pod) == "loaded ['cel_expr_python', 'neuron_dra.ask.why']"


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
