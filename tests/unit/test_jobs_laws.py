"""Laws of the reservations for jobs, whatever the objects claim. Issue 35.

A small cluster of jobs and workloads, some of them forged, is decided on and written until nothing changes.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.jobs.decide import ChangeWorkload, CreateWorkload, DeleteWorkload, Write
from controller.jobs.model import Job, PodSet
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import Namespace, Workload
from tests.support.decide_all import WholeJobDecision, WholeJobView
from tests.support.decide_all import decide_jobs as decide

NAMESPACES = {
    "ml": Namespace("ml", "16", "true"),
    "free": Namespace("free", "none", "true"),  # without a limit
    "plain": Namespace("plain", "16", ""),  # without the label
}
KINDS = ("Job", "StatefulSet")
NAMES, TEMPLATES = ("a", "b"), ("rct-1", "rct-2")
PASSES = 8


@dataclass
class Cluster:
    """Jobs and workloads. `used` are the names of the workloads that pods use; `claimed` lets pods end at some time."""

    jobs: list[Job]
    workloads: list[Workload]
    used: set[str]
    unguarded: str = ""
    created: list[CreateWorkload] = field(default_factory=list)

    def decide(self) -> WholeJobDecision:
        return decide(
            WholeJobView(
                KINDS,
                {},
                NAMESPACES,
                None,
                self.unguarded,
                lambda each: f"{each.namespace}/{each.name}" in self.used,
                jobs=self.jobs,
                workloads=self.workloads,
            )
        )

    def write(self, write: Write) -> None:
        match write:
            case CreateWorkload(body=body):
                self.created.append(write)
                meta = {**body["metadata"], "uid": f"made-{len(self.created)}"}
                self.workloads.append(decode.workload({**body, "metadata": meta}))
            case ChangeWorkload(workload=old, spec=spec):
                self.workloads[self.workloads.index(old)] = replace(old, count=spec.get("serverCount", old.count))
            case DeleteWorkload(workload=old):
                assert old.ref not in self.used, "released under running pods"
                self.workloads.remove(old)

    def settle(self) -> None:
        for _ in range(PASSES):
            found = self.decide().writes
            if not found:
                return
            for each in found:
                self.write(each)
        raise AssertionError(f"no end of writes: {self.decide().writes}")


pod_sets = st.builds(
    PodSet,
    st.integers(0, 12),
    st.lists(st.sampled_from(TEMPLATES), max_size=2, unique=True).map(tuple),
    st.sampled_from(["trn3.48xlarge", ""]),
)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    found = {}
    for number in range(draw(st.integers(0, 4))):
        one = Job(
            api_version="v1",
            kind=draw(st.sampled_from(KINDS)),
            namespace=draw(st.sampled_from(sorted(NAMESPACES))),
            name=draw(st.sampled_from(NAMES)),
            uid=f"uid-{number}",
            wish=draw(st.sampled_from(["topologySize=4", "topologySize=2", "topologySize=3", ""])),
            over=draw(st.sampled_from(["", "", "is suspended"])),
            pods=tuple(draw(st.lists(pod_sets, max_size=2))),
        )
        found[one.kind, one.namespace, one.name] = one
    return list(found.values())


@st.composite
def forged(draw: st.DrawFn) -> list[Workload]:
    """Workloads that say anything about who made them."""
    found = {}
    marks = ["", *(f"{kind}/{name}/uid-{n}" for kind in KINDS for name in NAMES for n in range(4)), "nonsense"]
    for number in range(draw(st.integers(0, 3))):
        one = Workload(
            namespace=draw(st.sampled_from(sorted(NAMESPACES))),
            name=draw(st.sampled_from(NAMES)),
            uid=f"forged-{number}",
            version="1",
            generation=1,
            created=datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC),
            deleting=False,
            finalizers=(),
            instance_type="trn3.48xlarge",
            size=draw(st.sampled_from([2, 4])),
            count=draw(st.integers(1, 9)),
            strategy="NoOp",
            logical_neuron_core=2,
            template_name=draw(st.sampled_from(TEMPLATES)),
            status={},
            made_for=draw(st.sampled_from(marks)),
        )
        found[one.ref] = one
    return list(found.values())


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    workloads = draw(forged())
    used = {each.ref for each in workloads if draw(st.booleans())}
    return Cluster(draw(jobs()), workloads, used, draw(st.sampled_from(["", "", "", "no policy"])))


def wanted(job: Job) -> int:
    """The pods of a job that could need nodes."""
    return 0 if job.over else sum(each.count for each in job.pods if each.claim_templates)


@settings(max_examples=400, deadline=None)
@given(clusters())
def test_only_namespaces_with_the_right_get_nodes_and_no_more_than_their_pods(cluster: Cluster) -> None:
    before = {each.ref: each.count * each.size for each in cluster.workloads}
    cluster.settle()
    for each in cluster.created:
        assert each.job.namespace == "ml"
        assert not cluster.unguarded
        spec = each.body["spec"]
        assert spec["serverCount"] * spec["topologySize"] <= wanted(each.job)
    for workload in cluster.workloads:
        nodes = workload.count * workload.size
        if nodes > before.get(workload.ref, 0):
            assert workload.namespace == "ml"
            living = [job for job in cluster.jobs if (job.namespace, job.mark) == ("ml", workload.made_for)]
            assert len(living) == 1
            assert nodes <= wanted(living[0])


@settings(max_examples=400, deadline=None)
@given(clusters())
def test_what_is_marked_ends_with_its_reason_and_never_under_pods(cluster: Cluster) -> None:
    by_hand = [each for each in cluster.workloads if not each.made_for]
    cluster.settle()
    assert all(each in cluster.workloads for each in by_hand)
    cluster.jobs = []
    cluster.settle()
    known = [each for each in cluster.workloads if each.made_for.partition("/")[0] in KINDS]
    assert all(each.ref in cluster.used for each in known)
    cluster.used = set()
    cluster.settle()
    assert [each.ref for each in cluster.workloads if each.made_for.partition("/")[0] in KINDS] == []


@settings(max_examples=200, deadline=None)
@given(clusters())
def test_forged_workloads_change_nothing_about_who_may(cluster: Cluster) -> None:
    """A forged mark makes no reservation that there would not be without it."""
    without = Cluster(cluster.jobs, [], set(), cluster.unguarded)
    cluster.settle()
    without.settle()
    assert {each.job.uid for each in cluster.created} <= {each.job.uid for each in without.created}
