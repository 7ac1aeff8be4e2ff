"""Device metadata, as Kubernetes' own library reads it. Issue 18.6."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hack.oracle.judge import CannotBuild, Oracle, build
from neuron_dra.api.objects import healthy_node
from neuron_dra.core import metadata
from neuron_dra.core.catalogue import all_types
from neuron_dra.core.claims import AllocatedDevice, PreparedClaim
from tests.unit.test_device_metadata import claim, device, of_the_job, prepared


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    try:
        program = build(tmp_path_factory.mktemp("oracle") / "oracle")
    except CannotBuild as err:
        pytest.skip(str(err))
    with Oracle(program) as running:
        yield running


def cases() -> Iterator[PreparedClaim]:
    yield of_the_job()
    yield of_the_job(*(device(number) for number in range(16)))
    yield prepared(claim(device(0, "a"), device(2, "b/small"), pod_claim="devices"))
    for each in all_types():
        name = "neuron-node-0" if each.whole_node else "neuron-device-0"
        yield prepared(claim(AllocatedDevice("r", "n1", name)), healthy_node(each.name))


def test_kubernetes_library_reads_every_file(reader: Oracle) -> None:
    """18.6: the decoder and validation of k8s.io/dynamic-resource-allocation, for each version in the file."""
    for made in cases():
        for data in metadata.files(made).values():
            text = data.decode()
            newest, older = text.splitlines()
            for part, version in ((text, 0), (newest, 0), (older, 1), (newest.replace("v1beta1", "v7") + older, 1)):
                answer = reader.ask({"metadata": part})
                assert answer.get("error") is None
                assert answer["version"] == metadata.VERSIONS[version]
                found = json.loads(newest)
                assert {**answer["metadata"], "apiVersion": ""} == {**found, "apiVersion": ""}
    assert "Required value" in reader.ask({"metadata": text.replace('"pool":"n1"', '"pool":""')})["error"]
