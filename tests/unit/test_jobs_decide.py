"""What is made, changed and released for jobs that ask for UltraServers. Issue 35."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from controller.jobs.decide import ChangeWorkload, CreateWorkload, DeleteWorkload
from controller.jobs.kinds import KINDS
from controller.jobs.model import Job
from neuron_dra.core import job_wish
from neuron_dra.core.job_wish import InvalidWish, Wish, wish
from neuron_dra.core.wire import Obj
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import SLOT_SIZES, Namespace, Template, Workload
from neuron_dra.planner.plan import strategies
from tests.support.decide_all import WholeJobDecision, WholeJobView
from tests.support.decide_all import decide_jobs as decide

KIND = {each.name: each for each in KINDS}
GUARDED = Namespace("ml", "16", "true")


def pods(*templates: str, kind: str = "trn3.48xlarge") -> Obj:
    claims = [{"name": f"c{n}", "resourceClaimTemplateName": each} for n, each in enumerate(templates)]
    selector = {"nodeSelector": {"node.kubernetes.io/instance-type": kind}} if kind else {}
    return {"spec": {"containers": [{"name": "c"}], "resourceClaims": claims, **selector}}


def item(spec: Obj, *, text: str = "topologySize=4", name: str = "train", **status: Any) -> Obj:
    meta = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "annotations": {"neuron.aws.com/ultraservers": text}}
    return {"metadata": meta, "spec": spec, "status": status}


def job(parallelism: int = 8, template: Obj | None = None, **options: Any) -> Job:
    found = KIND["Job"].job(item({"parallelism": parallelism, "template": template or pods("rct")}, **options))
    assert found is not None
    return found


def workload(
    name: str = "train", *, template: str = "rct", made_for: str = "Job/train/uid-train", **spec: Any
) -> Workload:
    annotations = {"annotations": {"neuron.aws.com/made-for": made_for}} if made_for else {}
    meta = {"name": name, "namespace": "ml", "uid": f"w-{name}", "resourceVersion": "7", **annotations}
    wanted = {"instanceType": "trn3.48xlarge", "topologySize": 4, "serverCount": 2, **spec}
    return decode.workload({"metadata": meta, "spec": {**wanted, "resourceClaimTemplate": {"name": template}}})


def view(
    *jobs: Job,
    workloads: Collection[Workload] = (),
    in_use: Collection[str] = (),
    namespaces: Mapping[str, Namespace] | None = {"ml": GUARDED},
    default_limit: int | None = None,
    unguarded: str = "",
    templates: Mapping[tuple[str, str], Template] = {},
    kinds: Collection[str] = tuple(KIND),
) -> WholeJobView:
    facts = kinds, templates, namespaces, default_limit, unguarded, lambda each: each.name in in_use
    return WholeJobView(*facts, jobs=jobs, workloads=workloads)


def writes(found: WholeJobDecision) -> list[str]:
    return [
        f"{type(each).__name__} {each.job.name if isinstance(each, CreateWorkload) else each.workload.name}"
        for each in found.writes
    ]


def reasons(found: WholeJobDecision) -> list[str]:
    return [each.reason for each in found.notes]


def test_job_without_a_workload_gets_one() -> None:
    (made,) = decide(view(job())).writes
    assert isinstance(made, CreateWorkload)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-train", "controller": True}
    assert made.body == {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {
            "name": "train",
            "namespace": "ml",
            "labels": {"app.kubernetes.io/managed-by": "neuron-ultraserver-controller"},
            "annotations": {"neuron.aws.com/made-for": "Job/train/uid-train"},
            "ownerReferences": [owner],
        },
        "spec": {
            "instanceType": "trn3.48xlarge",
            "topologySize": 4,
            "serverCount": 2,
            "resourceClaimTemplate": {"name": "rct"},
        },
    }


def test_annotation_sets_what_the_pods_do_not_name() -> None:
    text = "topologySize=2, instanceType=trn2u.48xlarge, failureStrategy=MigrateAffected, logicalNeuronCore=1"
    text += ", priorityClassName=high"
    (made,) = decide(view(job(2, pods("rct", kind=""), text=text))).writes
    assert isinstance(made, CreateWorkload)
    assert made.body["spec"] == {
        "instanceType": "trn2u.48xlarge",
        "topologySize": 2,
        "serverCount": 1,
        "resourceClaimTemplate": {"name": "rct"},
        "allocationPolicy": {"failureStrategy": "MigrateAffected"},
        "config": {"logicalNeuronCore": 1},
        "priorityClassName": "high",
    }


@pytest.mark.parametrize(
    ("text", "had", "changes"),
    [
        ("topologySize=4,priorityClassName=high", {}, {"priorityClassName": "high"}),
        ("topologySize=4,priorityClassName=high", {"priorityClassName": "low"}, {"priorityClassName": "high"}),
        ("topologySize=4", {"priorityClassName": "low"}, {"priorityClassName": None}),
    ],
)
def test_priority_class_follows_the_annotation(text: str, had: Obj, changes: Obj) -> None:
    (made,) = decide(view(job(text=text), workloads=[workload(**had)])).writes
    assert isinstance(made, ChangeWorkload)
    assert made.spec == changes


def test_priority_class_that_the_api_server_drops_is_not_written_again() -> None:
    asked = view(job(text="topologySize=4,priorityClassName=high"), workloads=[workload()])
    assert decide(replace(asked, unkept=["spec.priorityClassName"])).writes == []


DRIVER = {"spec": {"containers": [{"name": "driver"}]}}


@pytest.mark.parametrize(
    ("kind", "spec", "groups"),
    [
        ("Job", {"parallelism": 8, "template": pods("rct")}, 2),
        ("Job", {"parallelism": 8, "completions": 4, "template": pods("rct")}, 1),
        ("Job", {"parallelism": 8, "completions": 80, "template": pods("rct")}, 2),
        ("StatefulSet", {"replicas": 4, "template": pods("rct")}, 1),
        ("LeaderWorkerSet", {"replicas": 3, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pods("rct")}}, 3),
        (
            "LeaderWorkerSet",
            {
                "replicas": 2,
                "leaderWorkerTemplate": {"size": 5, "leaderTemplate": DRIVER, "workerTemplate": pods("rct")},
            },
            2,
        ),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    {"name": "driver", "template": {"spec": {"template": DRIVER}}},
                    {"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 4, "template": pods("rct")}}},
                ]
            },
            2,
        ),
    ],
)
def test_groups_are_those_of_the_pods_that_name_the_template(kind: str, spec: Obj, groups: int) -> None:
    found = KIND[kind].job(item(spec))
    assert found is not None
    (made,) = decide(view(found)).writes
    assert isinstance(made, CreateWorkload)
    assert (made.body["spec"]["serverCount"], found.kind) == (groups, kind)


def test_objects_without_the_annotation_are_not_kept() -> None:
    plain = item({"template": pods("rct")})
    del plain["metadata"]["annotations"]
    assert [each.job(plain) for each in KINDS] == [None] * 4


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (job(6), "PodsDoNotFillGroups"),
        (job(8, text="topologySize=3"), "InvalidUltraServers"),
        (job(8, text=""), "InvalidUltraServers"),
        (job(8, pods("rct", kind="")), "InstanceTypeUnknown"),
        (job(8, pods()), "NoTemplate"),
        (job(8, text="topologySize=4,template=other"), "NoTemplate"),
        (job(8, pods("rct", "efa")), "SeveralTemplates"),
        (job(8192), "TooManyGroups"),
        (job(name="n" * 64), "NameTooLong"),
    ],
)
def test_what_cannot_be_reserved_is_told(asked: Job, reason: str) -> None:
    found = decide(view(asked))
    assert (found.writes, reasons(found), found.notes[0].warning) == ([], [reason], True)


def test_template_that_exists_is_another_drivers() -> None:
    efa = Template("ml", "efa", "t", owner=None, deleting=False)
    (made,) = decide(view(job(8, pods("rct", "efa")), templates={("ml", "efa"): efa})).writes
    assert isinstance(made, CreateWorkload)
    assert made.body["spec"]["resourceClaimTemplate"] == {"name": "rct"}


@pytest.mark.parametrize(
    "facts",
    [
        {"unguarded": "the policy is missing"},
        {"namespaces": None},
        {"namespaces": {}},
        {"namespaces": {"ml": Namespace("ml", "16", "")}},
        {"namespaces": {"ml": Namespace("ml", "16", "yes")}},
        {"namespaces": {"ml": Namespace("ml", "none", "true")}},
        {"namespaces": {"ml": Namespace("ml", "ten", "true")}},
        {"namespaces": {"ml": Namespace("ml", "", "true")}},
        {"namespaces": {"ml": Namespace("ml", "none", "true")}, "default_limit": 8},
    ],
)
def test_namespace_that_may_not_reserves_nothing_and_grows_nothing(facts: Any) -> None:
    fresh, grown = decide(view(job(), **facts)), decide(view(job(12), workloads=[workload()], **facts))
    assert (fresh.writes, reasons(fresh)) == ([], ["JobsMayNotReserve"])
    assert (grown.writes, reasons(grown)) == ([], ["JobsMayNotReserve"])


def test_default_limit_is_a_limit() -> None:
    assert writes(decide(view(job(), namespaces={"ml": Namespace("ml", "", "true")}, default_limit=8))) == [
        "CreateWorkload train"
    ]


def test_namespace_that_lost_the_right_still_shrinks_and_releases() -> None:
    facts: Any = {"workloads": [workload()], "namespaces": {"ml": Namespace("ml", "16", "")}}
    assert writes(decide(view(job(4), **facts))) == ["ChangeWorkload train"]
    assert writes(decide(view(**facts))) == ["DeleteWorkload train"]


@pytest.mark.parametrize("number", [4, 12])
def test_reservation_follows_the_number_of_pods(number: int) -> None:
    (change,) = decide(view(job(number), workloads=[workload()])).writes
    assert isinstance(change, ChangeWorkload)
    assert (change.workload.version, change.spec) == ("7", {"serverCount": number // 4})


def test_strategy_may_change_at_any_time() -> None:
    asked = job(text="topologySize=4,failureStrategy=RestartAll")
    (change,) = decide(view(asked, workloads=[workload()], in_use=["train"])).writes
    assert isinstance(change, ChangeWorkload)
    assert change.spec == {"allocationPolicy": {"failureStrategy": "RestartAll"}}


def test_nodes_of_another_kind_are_reserved_when_no_pod_uses_the_first() -> None:
    asked = job(text="topologySize=2")
    running, idle = (decide(view(asked, workloads=[workload()], in_use=used)) for used in (["train"], []))
    assert (running.writes, reasons(running)) == ([], ["ReservationDiffers"])
    assert writes(idle) == ["DeleteWorkload train"]


ENDED = [
    job(0),
    job(conditions=[{"type": "Complete", "status": "True"}]),
    job(conditions=[{"type": "Failed", "status": "True"}]),
    KIND["Job"].job(item({"parallelism": 8, "suspend": True, "template": pods("rct")})),
]


@pytest.mark.parametrize("ended", ENDED, ids=["no pods", "complete", "failed", "suspended"])
def test_job_that_ends_gives_its_nodes_back_when_no_pod_uses_them(ended: Job) -> None:
    assert writes(decide(view(ended))) == []
    assert writes(decide(view(ended, workloads=[workload()], in_use=["train"]))) == []
    decision = decide(view(ended, workloads=[workload()]))
    assert writes(decision) == ["DeleteWorkload train"]
    [release] = decision.writes
    assert isinstance(release, DeleteWorkload)
    assert release.job == ended


def test_workload_of_a_job_that_is_gone_is_kept_while_it_is_in_use() -> None:
    assert writes(decide(view(workloads=[workload()], in_use=["train"]))) == []
    (release,) = decide(view(workloads=[workload()])).writes
    assert isinstance(release, DeleteWorkload)
    assert release.job is None


def test_workload_of_a_kind_that_is_not_known_is_kept() -> None:
    assert decide(view(workloads=[workload()], kinds=["StatefulSet"])).writes == []


def test_workload_that_a_person_made_is_left_alone() -> None:
    other = workload("by-hand", made_for="")
    for number in (0, 4, 8):
        assert decide(view(job(number), workloads=[other])).writes == []
    found = decide(view(job(), workloads=[other]))
    assert (reasons(found), found.notes[0].warning) == (["WorkloadExists"], False)


def test_template_of_another_job_is_not_shared() -> None:
    other = workload("earlier", made_for="Job/earlier/uid-earlier")
    earlier = job(name="earlier")
    found = decide(view(job(), earlier, workloads=[other]))
    assert (found.writes, reasons(found)) == ([], ["TemplateNameInUse"])


def test_two_new_jobs_do_not_get_one_template() -> None:
    """One of them is told; before, both got a workload that makes the template."""
    found = decide(view(job(name="one"), job(name="two")))
    assert (writes(found), reasons(found)) == (["CreateWorkload one"], ["TemplateNameInUse"])


class Counted(list[Workload]):
    """Workloads that count how often somebody goes through all of them."""

    rounds = 0

    def __iter__(self) -> Iterator[Workload]:
        self.rounds += 1
        return super().__iter__()


def test_workloads_are_gone_through_once_however_many_jobs_there_are() -> None:
    """Five thousand new jobs of one tenant beside five thousand reservations took 0.6 s in each pass."""
    there = Counted(workload(f"w{number}", template=f"t{number}", made_for="") for number in range(3))
    decide(view(*(job(name=f"j{number}", template=pods(f"new{number}")) for number in range(20)), workloads=there))
    assert there.rounds == 1


def test_namespaces_take_turns() -> None:
    """A tenant with many new jobs does not hold back another one, whose name is later in the alphabet."""
    many = [job(name=f"j{number}", template=pods(f"t{number}")) for number in range(20)]
    other = replace(job(name="late", template=pods("late")), namespace="zoo")
    found = decide(view(*many, other, namespaces={"ml": GUARDED, "zoo": replace(GUARDED, name="zoo")}))
    assert writes(found)[:3] == ["CreateWorkload j0", "CreateWorkload late", "CreateWorkload j1"]


def test_name_of_another_workload_is_told() -> None:
    found = decide(view(job(), workloads=[workload(template="else", made_for="")]))
    assert (found.writes, reasons(found)) == ([], ["WorkloadNameTaken"])


def test_annotation_knows_the_sizes_and_strategies_of_workloads() -> None:
    assert (job_wish.SIZES, job_wish.STRATEGIES) == (SLOT_SIZES, strategies.NAMES)


@pytest.mark.parametrize("suspended", [False, True])
def test_job_of_kueue_is_refused(suspended: bool) -> None:
    """The real Kueue suspends it at once."""
    queued = item({"parallelism": 8, "suspend": suspended, "template": pods("rct")})
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    found = KIND["Job"].job(queued)
    assert found is not None
    assert reasons(decide(view(found))) == ["ManagedByKueue"]


def test_state_of_the_reservation_is_told_once_for_each_reason() -> None:
    waiting = {"type": "Ready", "status": "False", "reason": "InsufficientCapacity", "message": "needs 8 nodes"}
    meta = {"name": "train", "namespace": "ml", "uid": "w", "annotations": {"neuron.aws.com/made-for": job().mark}}
    spec = {
        "instanceType": "trn3.48xlarge",
        "topologySize": 4,
        "serverCount": 2,
        "resourceClaimTemplate": {"name": "rct"},
    }
    made = decode.workload({"metadata": meta, "spec": spec, "status": {"conditions": [waiting]}})
    (note,) = decide(view(job(), workloads=[made])).notes
    assert (note.reason, note.warning, note.key) == ("InsufficientCapacity", False, "InsufficientCapacity")
    assert note.message == "NeuronUltraServerWorkload train: needs 8 nodes"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("topologySize=4", Wish(4)),
        (" topologySize = 2 , template=a.b ", Wish(2, template="a.b")),
        ("topologySize=1,failureStrategy=ReplaceAffected", Wish(1, strategy="ReplaceAffected")),
        ("topologySize=4,priorityClassName=high", Wish(4, priority_class="high")),
    ],
)
def test_annotation_is_read(text: str, found: Wish) -> None:
    assert wish(text) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4", "'4': write name=value, separated by commas"),
        ("topologySize=4,", "'': write name=value, separated by commas"),
        ("topologysize=4", "'topologysize' is no part of it: did you mean topologySize?"),
        ("topologySize=4,topologySize=2", "topologySize is there twice"),
        ("instanceType=trn3.48xlarge", "topologySize is missing: write topologySize=4, 2 or 1, the nodes of a group"),
        ("topologySize=8", "topologySize=8: write one of 1, 2, 4"),
        (
            "topologySize=4,failureStrategy=Restart",
            "failureStrategy=Restart: write one of NoOp, RestartAll, MigrateAffected, ReplaceAffected",
        ),
        ("topologySize=4,logicalNeuronCore=3", "logicalNeuronCore=3: write one of 1, 2"),
        ("topologySize=4,template=A_b", "template=A_b: write the name of a ResourceClaimTemplate"),
        ("topologySize=4,priorityClassName=A_b", "priorityClassName=A_b: write the name of a PriorityClass"),
    ],
)
def test_wrong_annotation_says_what_to_write(text: str, words: str) -> None:
    with pytest.raises(InvalidWish) as wrong:
        wish(text)
    assert str(wrong.value) == words


def queued_job(**more: Any) -> Job:
    asked = item({"parallelism": 8, "template": pods("rct"), **more})
    asked["metadata"]["annotations"]["neuron.aws.com/queue"] = "team"
    found = KIND["Job"].job(asked)
    assert found is not None
    return found


def test_queue_of_a_job_becomes_that_of_its_reservation() -> None:
    (made,) = decide(view(queued_job())).writes
    assert isinstance(made, CreateWorkload)
    assert made.body["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "neuron-ultraserver-controller",
        "kueue.x-k8s.io/queue-name": "team",
    }
    (change,) = decide(view(queued_job(), workloads=[workload()])).writes
    assert isinstance(change, ChangeWorkload)
    assert (change.spec, change.labels) == ({}, {"kueue.x-k8s.io/queue-name": "team"})


def test_queue_is_refused_while_queues_are_off() -> None:
    found = decide(replace(view(queued_job()), queues=False))
    assert (found.writes, reasons(found)) == ([], ["QueuesAreOff"])


def test_namespace_may_require_a_queue() -> None:
    namespaces = {"ml": Namespace("ml", "16", "queue")}
    without, with_one = (decide(view(each, namespaces=namespaces)) for each in (job(), queued_job()))
    assert (without.writes, reasons(without)) == ([], ["QueueRequired"])
    assert writes(with_one) == ["CreateWorkload train"]


def test_job_of_another_cluster_is_refused() -> None:
    assert reasons(decide(view(queued_job(managedBy="kueue.x-k8s.io/multikueue")))) == ["ManagedElsewhere"]
    assert writes(decide(view(queued_job(managedBy="kubernetes.io/job-controller")))) == ["CreateWorkload train"]


def test_invalid_queue_is_no_label_and_does_not_hold_up_growth() -> None:
    """4.02: the API server rejects such a label, and with it the new number of groups."""
    asked = replace(job(12), asked_queue="Not A Queue")
    found = decide(view(asked, workloads=[workload()]))
    [change] = found.writes
    assert isinstance(change, ChangeWorkload)
    assert (change.spec, change.labels) == ({"serverCount": 3}, {})
    assert reasons(found) == ["InvalidQueue"]
    new = decide(view(asked))
    assert (new.writes, reasons(new)) == ([], ["InvalidQueue"])


def test_valid_queue_becomes_the_label() -> None:
    """The control."""
    found = decide(view(replace(job(12), asked_queue="team"), workloads=[workload()]))
    [change] = found.writes
    assert isinstance(change, ChangeWorkload)
    assert change.labels == {"kueue.x-k8s.io/queue-name": "team"}
