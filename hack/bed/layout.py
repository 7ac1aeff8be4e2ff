"""Names and paths of a test bed, computed once from the environment."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GO_MODULES = REPOSITORY / "hack" / "testbed" / "go"

DEFAULT_NAME = "neuron-dra-testbed"


@dataclass(frozen=True, slots=True)
class Layout:
    """The names and paths of one test bed; two with different names can run side by side.

    `name` is also the name of the network namespace and of the cgroup. With `in_memory` the state folder is a tmpfs.
    """

    name: str
    is_root: bool
    state_dir: Path
    cache_dir: Path
    in_memory: bool = False

    @property
    def state_file(self) -> Path:
        return self.state_dir / "state.json"

    @property
    def lock_file(self) -> Path:
        """The lock file, outside the state folder, which `down` removes while it holds the lock."""
        return self.cache_dir / f"{self.name}.lock"

    @property
    def log_dir(self) -> Path:
        return self.state_dir / "logs"

    @property
    def audit_log(self) -> Path:
        """The requests of the service accounts in the driver's namespace, without bodies."""
        return self.state_dir / "audit.log"

    @property
    def pki_dir(self) -> Path:
        return self.state_dir / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.state_dir / "kubeconfig"

    @property
    def netns_file(self) -> Path:
        return Path("/run/netns") / self.name

    def node_dir(self, node: str) -> Path:
        return self.state_dir / "nodes" / node


def from_environment() -> Layout:
    """Return the layout from NEURON_DRA_TESTBED_NAME, _STATE, _CACHE and _IN_MEMORY; defaults depend on root.

    The state is on disk by default: containerd keeps its images there, 0.4 GB per node. No socket is in that folder: a
    node's sockets are at the standard paths inside its mount namespace, so their length does not matter.
    """
    name = os.environ.get("NEURON_DRA_TESTBED_NAME", DEFAULT_NAME)
    is_root = os.geteuid() == 0
    home = Path(os.environ.get("HOME") or "/root")
    user_state = Path(os.environ.get("XDG_STATE_HOME") or home / ".local/state")
    default_state = Path("/var/lib") / name if is_root else user_state / name
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return Layout(
        name=name,
        is_root=is_root,
        state_dir=Path(os.environ.get("NEURON_DRA_TESTBED_STATE") or default_state),
        cache_dir=Path(os.environ.get("NEURON_DRA_TESTBED_CACHE") or user_cache / DEFAULT_NAME),
        in_memory=is_root and bool(os.environ.get("NEURON_DRA_TESTBED_IN_MEMORY")),
    )


def short_hash(*parts: str | bytes) -> str:
    """Return 12 hex digits of a hash of the parts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:12]
