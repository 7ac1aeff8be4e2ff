"""Random clusters in which the simulator once differed from kube-scheduler (`make night ONLY=placements`)."""

from __future__ import annotations

from hack.oracle import placements, random_clusters
from neuron_dra.simulate.scheduler import Placement


def test_search_goes_on_where_the_scheduler_would() -> None:
    """Case 300: four devices beside a set of six, found after more than 100,000 tries."""
    made = random_clusters.case(300)
    pod, claim = made.steps[0].pods[0]
    assert claim is not None
    outcome = placements.Cluster(made).world().after([claim, {**pod, "status": {}}]).place(pod)
    assert isinstance(outcome, Placement)
    assert outcome.node == "c300-n0"
