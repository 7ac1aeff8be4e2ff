"""The words with which kubectl prints a snapshot. Pure, and light: each command imports it."""

from __future__ import annotations

from typing import Final

PRINTED: Final = {
    "ResourceSlice": "resourceslices",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
    "DeviceTaintRule": "devicetaintrules",
    "Node": "nodes",
    "NeuronUltraServer": "nus",
    "NeuronUltraServerWorkload": "nusw",
    "Pod": "pods",
    "ResourceQuota": "resourcequotas",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Event": "events",
}
"""The kinds of a snapshot that kubectl prints, by the words of `kubectl get`."""
