"""Qualifications, and the pods of their tests, kept by watches if the API server has the kind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from controller.observe import unreadable
from controller.observe.caches import projected
from controller.qualify.model import (
    PodOfTest,
    Qualification,
    pod_of_test,
    qualification,
    unread_pod,
    unread_qualification,
)
from controller.timing import QualifyTiming
from neuron_dra.core.qualification import NAMESPACE
from neuron_dra.errors import Forbidden, NotServed
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import NEURON_QUALIFICATIONS, PODS

log = logging.getLogger(__name__)


class QualifyWatches:
    """The watches. They call `on_change` after every change.

    A cluster without the kind has no qualifications, and its pods are not watched.
    """

    def __init__(self, client: KubeClient, on_change: Callable[[], None], timing: QualifyTiming) -> None:
        self._timing = timing
        self._on_change = on_change
        self._asked = Reflector(
            client,
            NEURON_QUALIFICATIONS,
            on_change=on_change,
            gives_up_on=(NotServed, Forbidden),
            project=projected(qualification),
            salvage=unreadable.existing(unread_qualification, {}),
        )
        self._pods = Reflector(
            client,
            PODS,
            namespace=NAMESPACE,
            on_change=on_change,
            gives_up_on=(Forbidden,),
            project=projected(pod_of_test),
            salvage=lambda raw, have: unreadable.stand_in(unread_pod, raw, {}),
        )
        self._needs_pods = asyncio.Event()
        self.pods_problem = ""
        """Why the pods of tests cannot be listed; empty if they can, or if that was not tried yet."""
        self._absent = False
        self._forbidden: set[str] = set()

    @property
    def reflectors(self) -> dict[str, Reflector]:
        """The watches by the plural of their kind."""
        return {NEURON_QUALIFICATIONS.plural: self._asked, PODS.plural: self._pods}

    @property
    def is_served(self) -> bool:
        """Whether the API server has the kind. If it has not, qualifications may still be stored."""
        return self._asked.synced.is_set()

    @property
    def settled(self) -> bool:
        """True if all qualifications are known; there are none if the API server does not have the kind."""
        return self._absent or self._asked.synced.is_set()

    @property
    def sees_pods(self) -> bool:
        """True if all pods of tests are known. They are watched once there is a qualification."""
        return self._pods.synced.is_set()

    def qualifications(self) -> dict[str, Qualification]:
        """Return the qualifications by name."""
        items = self._asked.items.values() if self._asked.synced.is_set() else ()
        by_name = {item["value"].name: item["value"] for item in items}
        return dict(sorted(by_name.items()))

    def pods(self) -> list[PodOfTest]:
        """Return the pods of tests."""
        return [item["value"] for item in self._pods.items.values()]

    def watch_pods(self) -> None:
        """Begin to watch pods."""
        self._needs_pods.set()

    def remember(self, resource_is_pod: bool, item: dict[str, Any]) -> None:
        """Keep the answer to a write."""
        (self._pods if resource_is_pod else self._asked).remember(item)

    def tasks(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the coroutine functions to run. None of them ends by itself."""
        return {"qualifications": self._watch_qualifications, "pods of tests": self._watch_pods}

    async def relist(self) -> None:
        """List again what is watched: a new leader must not decide on a follower's caches. Raises ApiError."""
        for reflector in (self._asked, self._pods):
            if reflector.synced.is_set():
                await reflector.relist()

    async def resume(self) -> None:
        """Open the watches again for a leader that regained its Lease; list what has no watch. Raises ApiError."""
        for reflector in (self._asked, self._pods):
            if reflector.synced.is_set():
                await reflector.resume()

    async def _watch_qualifications(self) -> None:
        while True:
            try:
                await self._asked.run()
            except NotServed:
                self._absent = True
            except Forbidden as err:
                self._absent = False
                self._warn("qualifications", err)
            self._asked.synced.clear()
            self._on_change()
            await asyncio.sleep(self._timing.absent_s)

    async def _watch_pods(self) -> None:
        await self._needs_pods.wait()
        while True:
            try:
                await self._pods.run()
            except Forbidden as err:
                self._warn("pods", err)
                self.pods_problem = (
                    f"the controller may not list pods in the namespace {NAMESPACE}: apply the Role of this release "
                    f"({err})"
                )
            self._pods.synced.clear()
            self._on_change()
            await asyncio.sleep(self._timing.absent_s)

    def _warn(self, what: str, err: Forbidden) -> None:
        """Log once that what tests need cannot be read."""
        if what not in self._forbidden:
            log.warning(
                "no UltraServers are tested: apply the ClusterRole and the Role of this release",
                extra={"forbidden": what, "error": str(err)},
            )
        self._forbidden.add(what)
