"""Where the shared fixtures of tests differ from the shipped product, and why.

`ROWS` has a row for each setting, wait and part. `difference_finder` finds the differences in the fixtures themselves;
tests/unit/test_differences.py fails for a difference without a row, and for a row without one. What a test says of its
own, as by `with_timing`, is exempt.

Rows without `production` are of the machine: paths, names and numbers of ports, which no test can have as a node has
them. For the others, `production` says what uses the shipped value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

AS_SHIPPED: Final = "the walk, tests/story/test_as_shipped.py and the fleet"
NOT_THE_FLEET: Final = (
    "the walk and tests/story/test_as_shipped.py; the fleet's plugins have no sockets, because the time of a real one "
    "does not pass with the fleet's clock"
)
CONTROLLERS: Final = "the walk, tests/story/test_as_shipped.py and the fleet's controllers"
WITH_PORTS: Final = "the walk and tests/story/test_as_shipped.py; the fleet's controllers have no ports, as its plugins"


@dataclass(frozen=True, slots=True)
class Row:
    """Why a fixture differs, and what uses the production value instead; empty for what belongs to the machine."""

    reason: str
    production: str = ""


def _rows(where: str, reason: str, production: str, *names: str) -> dict[str, Row]:
    return {f"{where}: {name}": Row(reason, production) for name in names}


# Nothing in this table says what a test must be quick about: each is a wait that a test would spend in real time.
ROWS: Final[Mapping[str, Row]] = {
    **_rows(
        "timings.QUICK_CLIENT",
        "tests end watches, and would wait for the next one",
        AS_SHIPPED,
        "watch.retry_s",
        "watch.short_s",
        "events.retry_s",
    ),
    **_rows(
        "timings.QUICK_CLIENT",
        "a test that sets the server's clock would wait until it is believed",
        AS_SHIPPED,
        "clock_s",
    ),
    **_rows(
        "timings.QUICK",
        "each change of the hardware, and each failure, would cost seconds",
        AS_SHIPPED,
        "hardware.period_s",
        "publish.gather_s",
        "publish.retry_s",
        "publish.leaving.check_s",
    ),
    **_rows(
        "timings.QUICK_RESERVATIONS",
        "each reservation, and each rejection, would cost up to ten seconds",
        AS_SHIPPED,
        "ultraserver.probe_s",
        "ultraserver.rejection_wait_s",
        "ultraserver.refresh_s",
        "ultraserver.recheck_s",
    ),
    **_rows(
        "timings.IMPATIENT",
        "transactions without a plugin are told at once that the API server failed",
        AS_SHIPPED,
        "fetch_patience_s",
    ),
    **{
        key: row
        for quick in ("QUICK", "BRIEF_LEASE")
        for key, row in _rows(
            f"controller_timings.{quick}",
            "each pass, failure and term of a leader would cost seconds",
            CONTROLLERS,
            "lease.retry_s",
            "caches.heartbeats_s",
            "passes.gather_s",
            "passes.retry_s",
            "passes.idle_s",
            "outbox.retry_s",
            "writes.first_eviction_s",
            "writes.longest_s",
            "client.watch.retry_s",
            "client.events.retry_s",
            "client.watch.short_s",
            "client.clock_s",
        ).items()
    },
    **_rows(
        "controller_timings.BRIEF_LEASE",
        "a test of a takeover waits for the end of a Lease",
        CONTROLLERS,
        "lease.duration_s",
        "lease.renew_deadline_s",
    ),
    **_rows(
        "PluginHost",
        "several plugins, and several test processes, run on one machine",
        NOT_THE_FLEET,
        "settings.healthcheck_port",
        "settings.metrics_bind_address",
    ),
    **_rows(
        "PluginHost",
        "a claim for a device that another one holds is rejected at once, and the test need not wait",
        AS_SHIPPED,
        "settings.device_wait_seconds",
    ),
    **_rows(
        "PluginHost",
        "few tests have a kubelet that lists its pods: `PodResources`",
        NOT_THE_FLEET,
        "missing: kubelet_pod_resources_socket",
    ),
    **_rows(
        "PluginHost",
        "the plugin makes the folder, as the DaemonSet's volume does where the runtime has not",
        "tests/contract/test_host_mounts.py, where the folder is there",
        "missing: cdi_root",
    ),
    **_rows(
        "PluginHost",
        "simulated devices are files below host_root, where the plugin looks first",
        "the test bed, whose nodes have /dev",
        "missing: host_dev",
    ),
    **_rows(
        "PluginHost",
        "it is of the machine",
        "",
        "settings.node_name",
        "settings.cdi_root",
        "settings.kubelet_registrar_directory_path",
        "settings.kubelet_plugins_directory_path",
        "settings.kubelet_device_plugins_directory_path",
        "settings.kubelet_pod_resources_socket",
        "settings.healthcheck_address",
        "settings.host_root",
        "settings.boot_id_file",
        "settings.kube_api_server",
    ),
    **_rows(
        "FleetNode",
        "it is of the machine",
        "",
        "settings.node_name",
        "settings.pod_uid",
        "settings.cdi_root",
        "settings.kubelet_registrar_directory_path",
        "settings.kubelet_plugins_directory_path",
        "settings.kubelet_device_plugins_directory_path",
        "settings.host_root",
        "settings.boot_id_file",
    ),
    **_rows(
        "FleetNode",
        "a fleet has many plugins in one process, in a time of its own, and no sockets",
        "the walk and tests/story/test_as_shipped.py",
        "settings.healthcheck_port",
        "settings.metrics_bind_address",
        "missing: kubelet_pod_resources_socket",
    ),
    **_rows(
        "FleetNode",
        "the fleet's hardware is in memory, and says when it changes",
        "the test bed, whose nodes have /dev",
        "missing: host_dev",
    ),
    **_rows(
        "FleetPlugin",
        "the fleet's kubelets call `transactions`, and there are no sockets",
        "the walk and tests/story/test_as_shipped.py",
        "without self._dra.start",
        "without self._reg.start",
        "without self._supervise",
        "without self._tcp_health.run",
        "without self.http.run",
        "without self._lock_keeper.run",
    ),
    **_rows(
        "FleetPlugin",
        "the fleet's hardware is in memory, and says when it changes",
        "the walk and tests/story/test_as_shipped.py",
        "without self.hardware.poll",
    ),
    **_rows(
        "FleetPlugin",
        "it asks the kubelet's sockets: of pods, of device plugins, and of plugins before this one",
        "the walk and tests/story/test_as_shipped.py",
        "without self.device_plugin.look",
        "without self.device_plugin.run",
        "without self.orphan_release.run",
    ),
    **_rows(
        "FleetPlugin",
        "a power cut of a fleet's node ends its boot, and nothing else is lost there",
        "the walk, tests/story/test_as_shipped.py, and tests/contract/test_flushes.py",
        "without self._flusher.run",
    ),
    **_rows(
        "FleetPlugin",
        "nobody removes the CDI files of a fleet's node, or replaces its directories",
        "the walk and tests/story/test_as_shipped.py",
        "without self._check_folders",
        "without self._repair",
    ),
    **_rows(
        "FleetPlugin",
        "the fleet has one release of Kubernetes, and the models are loaded on demand",
        "the walk and tests/story/test_as_shipped.py",
        "without self._check_versions",
        "without self._load_models",
    ),
    **_rows(
        "FleetPlugin",
        "a fleet's nodes have no EFA interfaces",
        "tests/contract/test_efa_driver.py and tests/story/test_efa_process.py",
        "without self.efa.open",
        "without self.efa.loops",
        "without self.efa.hurry",
        "without self.efa.close",
    ),
    **_rows(
        "FleetPlugin",
        "the fleet ends plugins by killing them",
        "the walk and tests/story/test_as_shipped.py",
        "without self._stop.wait",
        "without self._end",
        "without self._serve",
        "without self.loops",
        "without self.health.close",
        "without self.transactions.hurry",
        "without self.transactions.finish",
        "without self._reg.stop",
        "without self._dra.stop",
    ),
    **_rows(
        "Replica",
        "two controllers of one process would need the same ports",
        WITH_PORTS,
        "settings.grpc_address",
        "settings.health_probe_bind_address",
        "settings.metrics_bind_address",
    ),
    **_rows("Replica", "it is of the machine", "", "settings.kube_api_server"),
    **_rows(
        "tests/conftest.py",
        "most claims of tests of a plugin have no pods, and garbage collection would delete them",
        "the fleet, and stories with pods",
        "EmbeddedApi.controllers",
    ),
    **_rows(
        "ScriptedKubelet",
        "a kubelet is told of changes in its folder; the double looks",
        "the test bed",
        "poll_s",
    ),
    **_rows(
        "ScriptedKubelet",
        "a kubelet that starts deletes the node's slices, and most tests have no API server at that time",
        "the walk and tests/story/test_as_shipped.py",
        "node_name",
        "api_url",
    ),
    **_rows(
        "simulated_node.write",
        "the statistics of all cores are 13,000 files on a Trn2",
        "tests/unit/test_captured_trees.py",
        "statistics",
    ),
    **_rows("ScriptedNode", "a pod that failed would be tried again after 90 s", "the fleet's kubelets", "retry_s"),
    **_rows(
        "EmbeddedApi",
        "tests create the pods of Deployments and Jobs, so that each has the name and the time that they need",
        "tests/contract/test_emulated_workloads.py, and the demo",
        "workloads",
    ),
    **_rows(
        "ScriptedNode",
        "tests end the containers, or let them run",
        "tests/unit/test_simulated_programs.py, and the demo",
        "ends_programs",
    ),
    **_rows(
        "PodScheduler",
        "its Events would be requests beside those that the laws of the fleet count",
        "tests/contract/test_emulated_scheduler.py, and the demo",
        "posts_events",
    ),
    **_rows("EmbeddedApi", "requests need no certificates", "tests/contract/test_connections.py", "tls"),
    **_rows(
        "PodScheduler",
        "it is one scheduler for all pods",
        "the fleet, whose pods name their scheduler",
        "name",
    ),
}
