"""Events about objects with names of 253 characters, from nodes with such names (4.04)."""

from __future__ import annotations

import datetime
import re

import pytest

from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder, reference
from tests.support.sent_events import send_events

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NOW = datetime.datetime(2026, 3, 21, tzinfo=datetime.UTC)


def name_with(character: str) -> str:
    """Return a name of 253 characters whose 200th is `character`."""
    labels = "a" * 49 + "." + "b" * 49 + "." + "c" * 49 + "." + "d" * 48 + "e" + character + "f"
    return labels.ljust(253, "g")


@pytest.mark.parametrize("character", ["x", "."])
async def test_event_about_a_long_name_is_valid(api: EmbeddedApi, character: str) -> None:
    name = name_with(character)
    assert (len(name), SUBDOMAIN.fullmatch(name) is not None) == (253, True)
    async with KubeClient(KubeConfig(api.url)) as client:
        recorder = EventRecorder(client, host=name)
        recorder.post(reference("v1", "Node", "", name, "u"), "Warning", "Tested", "text\x1b\n" * 999, NOW)
        await send_events(recorder)
    [event] = api.objects("events")
    assert SUBDOMAIN.fullmatch(event["metadata"]["name"])
    assert len(event["metadata"]["name"]) <= 253
    assert (event["involvedObject"]["name"], event["source"]["host"]) == (name, name)
    assert len(event["reportingInstance"]) <= 128
    assert (len(event["message"]), event["message"].isprintable()) == (1024, True)
