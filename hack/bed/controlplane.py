"""etcd, API server, scheduler and controller manager."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hack.bed import build, network, pki
from hack.bed.errors import BedError
from hack.bed.layout import Layout
from hack.bed.processes import Processes, wait_until
from hack.bed.state import State

READY_TIMEOUT_S = 240  # an idle machine takes 4 s; a process that died is noticed at once
ADMINISTRATOR = "admin"
# The usual ports in the namespace; without root, free ones on 127.0.0.1.
STANDARD_PORTS = {"etcd": 2379, "etcd-peer": 2380, "api": 443, "scheduler": 10259, "controller-manager": 10257}


class ControlPlane:
    """The four servers of one test bed."""

    audit_rules: ClassVar[Sequence[Mapping[str, Any]]] = (
        # The rights that the two programs need are derived from their requests (tests/contract/test_rights.py).
        {"level": "Metadata", "userGroups": ["system:serviceaccounts:neuron-dra-driver"]},
        {"level": "None"},
    )

    def __init__(self, layout: Layout, state: State, processes: Processes) -> None:
        self.layout = layout
        self.state = state
        self.processes = processes

    @property
    def address(self) -> str:
        return network.API_SERVER_ADDRESS if self.layout.is_root else "127.0.0.1"

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.state.ports['api']}"

    def environment(self) -> Mapping[str, str]:
        """Return the environment in which kubectl, helm and the others find this test bed."""
        return {"PATH": build.bin_path(self.layout, self.state.kubernetes), "KUBECONFIG": str(self.layout.kubeconfig)}

    def up(self) -> None:
        """Start the servers that do not run, and wait until the API server answers (see also `wait_complete`)."""
        if not self.state.ports:
            with self.state.change():
                self.state.ports = dict(STANDARD_PORTS) if self.layout.is_root else _free_ports()
        pki.prepare(self.layout)
        self._write_kubeconfigs()
        self._start_etcd()
        self._start_api_server()
        self.processes.wait_ready("kube-apiserver", self.is_ready, READY_TIMEOUT_S)
        self._start("kube-scheduler", self._component_arguments("kube-scheduler", "scheduler"))
        controllers = (
            f"--service-account-private-key-file={self.layout.pki_dir}/service-account.key",
            "--use-service-account-credentials=true",
            f"--root-ca-file={self.layout.pki_dir}/ca.crt",
            # A node with a stopped kubelet is NotReady after this long instead of 50 s; kubelets renew every 4 s.
            "--node-monitor-grace-period=40s",
            "--node-monitor-period=2s",
        )
        self._start(
            "kube-controller-manager",
            [*self._component_arguments("kube-controller-manager", "controller-manager"), *controllers],
        )

    def wait_complete(self) -> None:
        """Wait until pods can be created; nodes need not wait for the controllers, which are the slowest to start."""
        wait_until("service account of namespace default", self._has_default_service_account, READY_TIMEOUT_S)

    def is_ready(self) -> bool:
        """Ask /readyz."""
        return self._succeeds("/readyz")

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        """Run kubectl as the administrator and return its output.

        Raises:
            BedError: it failed.
        """
        done = subprocess.run(
            [*network.enter(self.layout), "kubectl", *arguments],
            env={**os.environ, **self.environment()},
            input=stdin,
            capture_output=True,
            text=True,
            errors="backslashreplace",  # the API server stores bytes that are no text
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise BedError(f"kubectl {' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def read(self, path: str) -> dict[str, Any]:
        """Return the object, or the list of objects, at a path of the API, as the administrator.

        Raises:
            BedError: the API server does not answer, or returns an error, whose text it includes.
        """
        try:
            status, answer = self._get(path)
            content: dict[str, Any] = json.loads(answer)
        except (OSError, http.client.HTTPException, ValueError) as err:
            raise BedError(f"GET {path}: {err}") from err
        if status != http.client.OK:
            raise BedError(f"GET {path}: {content.get('reason')}: {content.get('message')}")
        return content

    def _get(self, path: str) -> tuple[int, bytes]:
        token = {"Authorization": f"Bearer {pki.token(self.layout, ADMINISTRATOR)}"}
        return network.get(self.layout, f"{self.url}{path}", token, self.layout.pki_dir / "ca.crt")

    def _succeeds(self, path: str) -> bool:
        try:
            return self._get(path)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _has_default_service_account(self) -> bool:
        return self._succeeds("/api/v1/namespaces/default/serviceaccounts/default")

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        binary = self._binary(name)
        if self.state.gates and name.startswith("kube-"):
            arguments = [*arguments, "--feature-gates=" + ",".join(f"{gate}=true" for gate in self.state.gates)]
        self.processes.start(name, [*network.enter(self.layout), binary, *arguments])

    def _binary(self, name: str) -> Path:
        for module in build.modules(self.layout, self.state.kubernetes):
            if (module.bin_dir / name).exists():
                return module.bin_dir / name
        raise BedError(f"{name} is not built; run `testbed build --kubernetes {self.state.kubernetes}`")

    def _write_kubeconfigs(self) -> None:
        users = {ADMINISTRATOR: self.layout.kubeconfig}
        for name in ("kube-scheduler", "kube-controller-manager"):
            users[f"system:{name}"] = self.layout.state_dir / f"{name}.kubeconfig"
        for user, path in users.items():
            pki.write_kubeconfig(self.layout, path, self.url, {"token": pki.token(self.layout, user)})

    def _start_etcd(self) -> None:
        client = f"http://127.0.0.1:{self.state.ports['etcd']}"
        peer = f"http://127.0.0.1:{self.state.ports['etcd-peer']}"
        self._start("etcd", [
            "--name=testbed", f"--data-dir={self.layout.state_dir}/etcd", "--unsafe-no-fsync",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=testbed={peer}", "--log-level=warn",
        ])  # fmt: skip

    def _start_api_server(self) -> None:
        policy = self.layout.state_dir / "audit-policy.json"
        policy.write_text(json.dumps({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": self.audit_rules,
        }))  # fmt: skip
        apis = ["resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2"]
        if self.state.gates:
            apis.append("scheduling.k8s.io/v1beta1")
        self._start("kube-apiserver", [
            f"--etcd-servers=http://127.0.0.1:{self.state.ports['etcd']}",
            f"--bind-address={self.address}", f"--secure-port={self.state.ports['api']}",
            f"--advertise-address={self.address if self.layout.is_root else '10.96.0.1'}",
            *pki.server_arguments(self.layout),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={network.SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP",
            "--runtime-config=" + ",".join(f"{api}=true" for api in apis),
            "--endpoint-reconciler-type=none", "--profiling=false",
            f"--audit-policy-file={policy}", f"--audit-log-path={self.layout.audit_log}",
            "--audit-log-maxsize=10000",  # MB in one file
        ])  # fmt: skip

    def _component_arguments(self, name: str, port: str) -> list[str]:
        kubeconfig = self.layout.state_dir / f"{name}.kubeconfig"
        return [
            f"--kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}", "--bind-address=127.0.0.1",
            f"--secure-port={self.state.ports[port]}", "--leader-elect=false",
            # The default, 20 requests a second, would delay the start and every reaction of the controllers.
            "--kube-api-qps=500", "--kube-api-burst=1000",
        ]  # fmt: skip


def _free_ports() -> dict[str, int]:
    """Return one free port of 127.0.0.1 for each server, all different."""
    with contextlib.ExitStack() as stack:
        ports = {}
        for name in STANDARD_PORTS:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports[name] = listener.getsockname()[1]
        return ports
