"""A stand-in for AWS's Neuron driver on a node of the test bed: it registers as `neuron.aws.com`, and prepares.

    python older_driver.py NODE_DATA_FOLDER REGISTRY CDI_FOLDER

It is written like Kubernetes' example driver: CDI files as CDI's library names and writes them, and a `checkpoint.json`
in its own format. The caller publishes the slices. It needs kubectl, and ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from neuron_dra.emulation.kubelet_wire import KubeletDevice
from tests.support.small_plugin import SmallPlugin

KIND = "k8s.neuron.aws.com/claim"


class OlderDriver(SmallPlugin):
    """Prepares all allocated devices, and keeps its own checkpoint."""

    def __init__(self, data: Path, registry: Path, cdi: Path) -> None:
        super().__init__(data, "older")
        self.socket = str(registry / "neuron.aws.com-older-reg.sock")
        self.devices = self.prepare
        self._cdi, self._checkpoint = cdi, data / "checkpoint.json"
        self._claims: dict[str, list[str]] = {}

    def prepare(self, uid: str) -> list[KubeletDevice]:
        results = self._allocated(uid)
        devices = [{"name": f"{uid}-{result['device']}", "containerEdits": edits(result)} for result in results]
        spec = {"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}
        (self._cdi / f"k8s.neuron.aws.com-claim_{uid}.yaml").write_text(json.dumps(spec))
        self._claims[uid] = [result["device"] for result in results]
        self._checkpoint.write_text(json.dumps({"checksum": 1713104513, "v1": {"preparedClaims": self._claims}}))
        print("prepared", uid, *self._claims[uid], flush=True)
        return [
            KubeletDevice((result["request"],), result["pool"], result["device"], (f"{KIND}={uid}-{result['device']}",))
            for result in results
        ]

    @staticmethod
    def _allocated(uid: str) -> list[dict[str, Any]]:
        words = ("kubectl", "get", "resourceclaims", "--all-namespaces", "-o", "json")
        done = subprocess.run(words, check=True, capture_output=True, timeout=30)
        [claim] = [item for item in json.loads(done.stdout)["items"] if item["metadata"]["uid"] == uid]
        results: list[dict[str, Any]] = claim["status"]["allocation"]["devices"]["results"]
        return results


def edits(result: dict[str, Any]) -> dict[str, Any]:
    """Return the container edits for the device."""
    number = result["device"].removeprefix("neuron-device-")
    return {"deviceNodes": [{"path": f"/dev/neuron{number}"}]}


async def main() -> None:
    driver = OlderDriver(*map(Path, sys.argv[1:]))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with driver:
        while not driver.verdicts:
            await asyncio.sleep(0.05)
        print("registered", *driver.verdicts[0], flush=True)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
