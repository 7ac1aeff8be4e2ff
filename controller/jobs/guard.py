"""Whether the admission policy that guards the namespaces' label is in force."""

from __future__ import annotations

import datetime
from typing import Final

from controller.timing import JobTiming
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, Forbidden, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.objects import MALFORMED
from neuron_dra.kube.requests import POLICIES, POLICY_BINDINGS

POLICY: Final = "neuron-dra-driver-jobs-reserve"
"""The name of the policy and of its binding, from the chart."""
_ABSENT: Final = (
    f"the ValidatingAdmissionPolicy {POLICY}, which guards the label, is not in force: "
    "set ultraserverOperator.admissionPolicies.enabled in the neuron-dra chart"
)


class Guard:
    """Reads the policy and its binding from time to time. `problem` is why they are not in force, empty if they are."""

    def __init__(self, client: KubeClient, timing: JobTiming) -> None:
        self._client = client
        self._timing = timing
        self._next_at: datetime.datetime | None = None
        self.problem = "the controller has not read yet whether the label is guarded"

    def end_waits(self) -> None:
        """Read them again at once."""
        self._next_at = None

    async def look(self, now: datetime.datetime) -> datetime.datetime:
        """Read them if that is due; return when it is due again. What was read last holds while a request fails."""
        if self._next_at is None or self._next_at <= now:
            self._next_at = now + datetime.timedelta(seconds=self._timing.guard_s)
            try:
                self.problem = await self._read()
            except (ApiError, *MALFORMED) as err:
                self.problem = self.problem and f"the policy {POLICY} cannot be read: {err}"
        return self._next_at

    async def _read(self) -> str:
        """Return why the policy does not hold. Raises ApiError."""
        try:
            policy = await self._client.read(POLICIES, "", POLICY)
            binding = await self._client.read(POLICY_BINDINGS, "", POLICY)
        except NotFound:
            return _ABSENT
        except Forbidden as err:
            return f"the controller may not read the policy {POLICY}: apply the ClusterRole of this release ({err})"
        return "" if denies(policy, binding) else _ABSENT


def denies(policy: Wire, binding: Wire) -> bool:
    """Return True if the binding rejects in all namespaces what the policy forbids."""
    spec, bound = policy.get("spec") or {}, binding.get("spec") or {}
    return (
        bound.get("policyName") == POLICY
        and "Deny" in (bound.get("validationActions") or [])
        and not bound.get("matchResources")
        and spec.get("failurePolicy", "Fail") == "Fail"
    )
