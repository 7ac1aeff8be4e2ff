"""The settings of the UltraServer controller, from its Deployment. Pure.

Only who may write in the driver's namespace can create a Deployment there. One of another namespace is no controller,
whatever its labels are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.read.views import MetaView, ObjectView
from neuron_dra.ask.render import words
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Wire

if TYPE_CHECKING:
    from neuron_dra.plan_settings import PlanSettings

NAME: Final = "neuron-ultraserver-controller"
LABELS: Final = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "controller"}
"""What the chart writes."""
CONTAINER: Final = "controller"
KEY: Final = ("Deployment", NAMESPACE, NAME)
"""What is read of a cluster."""


class CalledContainer(ObjectView, frozen=True):
    """A container, and how its program is called."""

    name: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class PodTemplateSpec(ObjectView, frozen=True):
    """The spec of a pod template."""

    containers: tuple[CalledContainer, ...] = ()


class PodTemplate(ObjectView, frozen=True):
    """A pod template."""

    spec: PodTemplateSpec = PodTemplateSpec()


class DeploymentSpec(ObjectView, frozen=True):
    """The spec of a Deployment."""

    template: PodTemplate = PodTemplate()


class DeploymentView(ObjectView, frozen=True):
    """A Deployment."""

    spec: DeploymentSpec = DeploymentSpec()


def settings(snapshot: Snapshot) -> tuple[PlanSettings | None, list[str]]:
    """Return the settings of the controller, and notes about them; None if its Deployment is not in the snapshot."""
    deployments = [deployment for deployment in snapshot.all("Deployment") if _is_controller(deployment)]
    if not deployments:
        return None, []
    if len(deployments) > 1:
        names = [str(deployment["metadata"]["name"]) for deployment in deployments]
        several = f"{words.listed(names)} in namespace {NAMESPACE} are all Deployments of the UltraServer controller"
        return None, [f"{several}: the settings of none are used"]
    name = f"Deployment {NAMESPACE}/{deployments[0]['metadata']['name']}"
    try:
        containers = DeploymentView.of(deployments[0]).spec.template.spec.containers
    except msgspec.ValidationError as err:
        return None, [f"the arguments of {name} cannot be read ({err}): its settings are not used"]
    container = next((container for container in containers if container.name == CONTAINER), None)
    if container is None:
        return None, [f"{name} has no container {CONTAINER}: its settings are not used"]
    from neuron_dra.plan_settings import of_arguments  # imports the planner, which most manifests do not need

    plan_settings = of_arguments([*container.command[1:], *container.args])
    unread = [f"{name}: {problem}; the default is used" for problem in plan_settings.problems]
    text = ", ".join([*plan_settings.changed, "else the defaults"]) if plan_settings.changed else "the defaults"
    return plan_settings, [*unread, f"settings of the UltraServer controller, from {name}: {text}"]


def _is_controller(deployment: Wire) -> bool:
    metadata = MetaView.of(deployment["metadata"])
    return metadata.namespace == NAMESPACE and LABELS.items() <= metadata.labels.items()
