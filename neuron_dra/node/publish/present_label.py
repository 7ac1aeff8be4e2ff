"""The Node's label neuron.amazonaws.com/present, which AWS's device plugin sets and its Neuron Observer selects."""

from __future__ import annotations

import asyncio
import logging

from neuron_dra.core import names
from neuron_dra.errors import ApiError
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.requests import NODES
from neuron_dra.node.own_node import OwnNode

log = logging.getLogger(__name__)


class PresentLabel:
    """Sets the label once the node publishes devices, if the setting asks for it. It is never removed."""

    def __init__(self, client: KubeClient, node: OwnNode, retry_s: float, *, is_enabled: bool) -> None:
        self._client = client
        self._node = node
        self._retry_s = retry_s
        self._is_enabled = is_enabled
        self.look_at: float | None = None  # when to try again

    async def settle(self, *, publishes: bool) -> None:
        """Set the label if it is missing; a failure is logged, and disturbs nothing else."""
        self.look_at = None
        if not self._is_enabled or not publishes or self._node.labels.get(names.PRESENT_LABEL) == names.PRESENT:
            return
        labels = {names.PRESENT_LABEL: names.PRESENT}
        try:
            await self._client.patch(NODES, "", self._node.name, {"metadata": {"labels": labels}})
        except ApiError as err:
            log.warning("cannot label the Node", extra={"label": names.PRESENT_LABEL, "error": str(err)})
            self.look_at = asyncio.get_running_loop().time() + self._retry_s
