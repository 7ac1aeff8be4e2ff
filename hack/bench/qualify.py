"""Measures what testing an idle fleet costs the controller, in process and without requests: `python -m hack.bench.qualify`.

Each test goes through its whole life: workload, reservation, tags, template, pods, verdict, release. After each change the
controller plans and looks at the tests, as it does when watches report them. It prints CPU seconds of a test, what those
are in millicores if each group is tested once a day, and the seconds of a survey.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.qualify import survey, yielding
from controller.qualify.decide import (
    DeletePod,
    QualifyView,
    StartPods,
    StartTest,
    StopTest,
    StoreResults,
    decide,
)
from controller.qualify.model import GroupTest, PodOfTest, Qualification, pod_of_test, qualification
from controller.timing import QualifyTiming
from hack.bench.plan import NOW, fleet, write
from neuron_dra.core.ultraserver import Tag
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    DeleteTemplate,
    Kept,
    SetFinalizers,
    SetUltraServerFinalizers,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS
from neuron_dra.planner.observed import decode, results
from neuron_dra.planner.plan import planning

DAY_S = 86_400
TIMING = QualifyTiming()
ASKED = {
    "metadata": {"name": "nightly", "uid": "q", "generation": 1, "resourceVersion": "1"},
    "spec": {
        "instanceTypes": ["trn3.48xlarge"],
        "image": "i",
        "maxGroups": 1,
        "thresholds": [{"name": "bandwidth", "atLeast": 140, "percentOfMedian": 90}],
    },
}


class Fleet:
    """A fleet whose nodes answer at once, and the CPU seconds of all decisions about it."""

    def __init__(self, nodes: int) -> None:
        self.index = fleet(nodes)
        self.asked: Qualification = qualification(ASKED)
        self.kept: Kept = planning.plan_of(self.index, NOW).kept
        self.now = NOW
        self.pods: dict[str, PodOfTest] = {}
        self.workload: dict[str, Any] | None = None
        self.stored: dict[str, list[dict[str, Any]]] = {}
        self.surveyed = self._survey()
        self.number = 0
        self.passes = 0
        self.survey_s = 0.0

    def _survey(self) -> tuple[survey.ResultSurvey, list[Any]]:
        return survey.survey(self.index, self.asked, self.now), survey.due(
            self.index, self.asked, (), self.now, DEFAULT_LIMITS.block_lead
        )

    def test(self) -> float:
        """Let one test begin and end; return CPU seconds."""
        spent, before = 0.0, self.number
        for _ in range(100):
            writes, took = self._look()
            spent += took
            if self.number > before and self.workload is None:
                break
            actions, took = self._plan()
            spent += took
            for each in writes:
                self._follow(each)
            for action in actions:
                self._apply(action)
            self._answer()
            self.index.refresh()
            self.now += datetime.timedelta(seconds=1)
        return spent

    def _plan(self) -> tuple[tuple[Action, ...], float]:
        began = time.process_time()
        made = planning.plan_of(self.index, self.now, kept=self.kept)
        self.kept = made.kept
        self.passes += 1
        return made.actions, time.process_time() - began

    def _look(self) -> tuple[list[Any], float]:
        began = time.process_time()
        tests = [
            GroupTest(each, each.target, tuple(self.pods.values()))
            for each in self.index.workloads
            if each.target is not None
        ]
        found, due = self.surveyed
        view = QualifyView(
            index=self.index,
            asked={"nightly": self.asked},
            tests=tests,
            surveys={"nightly": found},
            due={"nightly": due},
            yields=yielding.yields(self.index, (), tests, self.now, DEFAULT_LIMITS),
            complete=(),
            waits={},
            refusals={},
            may_begin=1,
            limits=DEFAULT_LIMITS,
            timing=TIMING,
            now=self.now,
        )
        kinds = (StartTest, StartPods, StopTest, StoreResults, DeletePod)
        writes = [each for each in decide(view).writes if isinstance(each, kinds)]
        return writes, time.process_time() - began

    def _follow(self, each: Any) -> None:
        """Do what the API server and kubelets do after a write."""
        match each:
            case StartTest(body=body):
                self.number += 1
                self.workload = json.loads(json.dumps(body))
                assert self.workload is not None
                self.workload["metadata"] |= {"uid": f"w{self.number}", "resourceVersion": "1", "generation": 1}
                self.workload["metadata"]["creationTimestamp"] = _text(self.now)
            case StartPods(pods=pods):
                for number, pod in enumerate(pods):
                    state = {"exitCode": 0, "startedAt": _text(self.now), "message": '{"bandwidth": 150}'}
                    status = {"containerStatuses": [{"state": {"terminated": state}}]}
                    pod_item = {**pod, "metadata": {**pod["metadata"], "uid": f"p{number}"}, "status": status}
                    self.pods[pod["metadata"]["name"]] = pod_of_test(pod_item)
            case StoreResults(ultraserver=name, results=found):
                self.stored[name] = results.written(found)
                have = self.index.ultraserver_by_name[name]
                self.index.put_ultraserver(name, replace(have, results=found))
                began = time.process_time()
                self.surveyed = self._survey()
                self.survey_s = time.process_time() - began
            case StopTest():
                assert self.workload is not None
                self.workload["metadata"]["deletionTimestamp"] = _text(self.now)
                self.pods = {}
        self._put_workload()

    def _put_workload(self) -> None:
        if self.workload is not None:
            key = f"{self.workload['metadata']['namespace']}/{self.workload['metadata']['name']}"
            self.index.put_workload(key, decode.workload(self.workload))

    def _apply(self, action: Action) -> None:
        """Store a write of the plan."""
        item = self.workload
        match action:
            case SetFinalizers(finalizers=finalizers) if item is not None:
                item["metadata"]["finalizers"] = list(finalizers)
                if not finalizers and "deletionTimestamp" in item["metadata"]:
                    key = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
                    self.index.put_workload(key, None)
                    self.workload = None
                self._put_workload()
            case WriteWorkloadStatus(status=status) if item is not None:
                item["status"] = dict(status)
                self._put_workload()
            case CreateTemplate(body=body):
                meta = {**body["metadata"], "uid": f"t{self.number}"}
                self.index.put_template((meta["namespace"], meta["name"]), decode.template({**body, "metadata": meta}))
            case DeleteTemplate(namespace=namespace, name=name):
                self.index.put_template((namespace, name), None)
            case SetUltraServerFinalizers(name=name, finalizers=finalizers):
                self._put_status(name, self.index.ultraserver_by_name[name].status, finalizers)
            case WriteUltraServerStatus(name=name, status=status, finalizers=finalizers):
                self._put_status(name, status, finalizers)
            case _:
                write(self.index, action)

    def _put_status(self, name: str, status: Mapping[str, Any], finalizers: tuple[str, ...] | None) -> None:
        have = self.index.ultraserver_by_name[name]
        meta = {"name": name, "uid": have.uid, "resourceVersion": str(int(have.version) + 1), "generation": 1}
        meta["finalizers"] = [*(have.finalizers if finalizers is None else finalizers)]
        item = {
            "metadata": meta,
            "spec": dict(have.spec),
            "status": {**status, "qualifications": self.stored.get(name, [])},
        }
        self.index.put_ultraserver(name, decode.ultraserver(item))

    def _answer(self) -> None:
        """Let the nodes tag their devices as their NeuronUltraServer says."""
        self.index.refresh()
        names = {each.target.ultraserver for each in self.index.workloads if each.target is not None}
        for name in names:
            stored = self.index.ultraserver_by_name[name]
            tags = {node: Tag.of(each.allocation) for each in stored.reservations for node in each.allocation.nodes}
            for node in self.index.group_by_name[name].node_names:
                have = self.index.published_by_name[node]
                if have.tag != tags.get(node):
                    self.index.put_published(node, replace(have, tag=tags.get(node)))


def _text(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def main() -> None:
    """Print the figures of a fleet."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--tests", type=int, default=20)
    parsed = parser.parse_args()
    made = Fleet(parsed.nodes)
    times = [made.test() for _ in range(parsed.tests)]
    groups = parsed.nodes // 4
    a_test = statistics.mean(times)
    surveys_s = DAY_S / max(TIMING.survey_s, TIMING.survey_group_s * groups) * made.survey_s
    print(f"nodes {parsed.nodes:,}, tests {len(made.stored)}, plans a test {made.passes / parsed.tests:.1f}")
    print(f"CPU of a test {a_test:.4f} s, of a survey {made.survey_s:.4f} s")
    tests = 1000 * a_test * groups / DAY_S
    surveys = 1000 * (surveys_s + made.survey_s * groups) / DAY_S
    print(f"each group once a day: {tests:.2f} millicores for tests, {surveys:.2f} for surveys")


if __name__ == "__main__":
    main()
