"""Our attributes, configuration fields, conditions and reasons with their meanings, from the code's tables.

The alerts of the chart come from a file of the package.

Fields of our custom resources are in `kubectl explain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.api import config
from neuron_dra.ask.explain import alerts
from neuron_dra.core import advice, causes, devices, health, names, shown_states, vocabulary
from neuron_dra.core.devices import Described

ATTRIBUTES: Final = "attributes"
CONFIGURATION: Final = "configuration"
CONDITIONS: Final = "conditions"
REASONS: Final = "reasons"
EVENTS: Final = "events"
UNHEALTHY: Final = "unhealthy"
CAUSES: Final = "causes"
STATES: Final = "states"
CHECKS: Final = "checks"
ALERTS: Final = "alerts"
TOPICS: Final = (ATTRIBUTES, CONFIGURATION, CONDITIONS, REASONS, EVENTS, UNHEALTHY, CAUSES, STATES, CHECKS, ALERTS)


@dataclass(frozen=True, slots=True)
class Meaning:
    """One name: what it is, its meaning, and labelled facts."""

    topic: str
    name: str
    what: str
    text: str
    facts: tuple[tuple[str, str], ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """Return the entry for `-o json` and `-o yaml`."""
        facts = [{"name": name, "text": text} for name, text in self.facts]
        return {"topic": self.topic, "name": self.name, "what": self.what, "text": self.text, "facts": facts}


def entries() -> list[Meaning]:
    """Return everything that can be explained, by topic."""
    driver = [*_attributes(), *_configuration(), *_conditions(), *_reasons(), *_events(), *_unhealthy()]
    return [*driver, *_causes(), *_states(), *_checks(), *_alerts()]


def find(name: str) -> list[Meaning]:
    """Return the entries of a name, in any case, or those of a topic. `NeuronConfig` has all fields of that kind."""
    lower_name = name.lower()
    plain = lower_name.removeprefix(f"{names.DRIVER}/")  # attributes of this driver are published without its domain
    matching = []
    for entry in entries():
        if lower_name == entry.topic or plain in _spellings(entry.name):
            matching.append(entry)
    return matching


def _spellings(name: str) -> Iterator[str]:
    """Yield the words that mean a name: the whole, and its part before or after a dot or a domain."""
    lower = name.lower()
    yield lower
    if "/" in lower:
        yield lower.partition("/")[2]
    elif "." in lower:
        yield from lower.split(".")


def known() -> list[str]:
    """Return every name and topic."""
    return [*TOPICS, *dict.fromkeys(entry.name for entry in entries())]


def _attributes() -> Iterator[Meaning]:
    described: Iterable[Described] = (*devices.ATTRIBUTES, *devices.TAGS, *devices.SIZES, *devices.MARKS)
    for attribute in described:
        domain, _, short = attribute.name.rpartition("/")
        path = f"device.attributes['{domain or names.DRIVER}'].{short}"
        guarded = path if attribute.when == "always" else f"has({path}) && {path} == ..."
        facts = (("published", attribute.when), ("in CEL", guarded))
        yield Meaning(ATTRIBUTES, attribute.name, f"attribute of a device, {attribute.kind}", attribute.text, facts)
    for name, text in devices.CAPACITIES:
        path = f"device.capacity['{names.DRIVER}'].{name}"
        yield Meaning(ATTRIBUTES, name, "capacity of a device", text, (("in CEL", path),))


def _configuration() -> Iterator[Meaning]:
    for kind in config.KINDS:
        what = f"field of {kind}, in a claim's opaque config"
        for rule in config.rules(kind):
            needed = "required" if rule.required else "optional"
            facts = (("values", f"{rule.values}; {needed}"), ("apiVersion", config.API_VERSIONS[0]))
            yield Meaning(CONFIGURATION, f"{kind}.{rule.name}", what, rule.text, facts)


def _conditions() -> Iterator[Meaning]:
    for condition in vocabulary.CONDITIONS:
        yield Meaning(CONDITIONS, condition.name, f"condition of a {condition.of}", condition.text)


def _reasons() -> Iterator[Meaning]:
    for reason in vocabulary.REASONS:
        which = "conditions" if "," in reason.condition else "condition"
        where = f"reason of the {which} {reason.condition} of a {reason.of}"
        yield Meaning(REASONS, reason.name, where, reason.text, (("to do", advice.TO_DO[reason.name]),))


def _events() -> Iterator[Meaning]:
    for event in vocabulary.EVENTS:
        yield Meaning(EVENTS, event.name, f"Event on a {event.of}", event.text, (("to do", advice.TO_DO[event.name]),))


def _unhealthy() -> Iterator[Meaning]:
    for name, text in vocabulary.UNHEALTHY.items():
        facts: tuple[tuple[str, str], ...] = ()
        if name in health.ADVICE:
            facts = (("to do", health.ADVICE[name].partition("; ")[2]),)
        yield Meaning(
            UNHEALTHY, name, f"value of the attribute unhealthy, and of the taint {health.TAINT_KEY}", text, facts
        )


def _causes() -> Iterator[Meaning]:
    for what, meanings in causes.OF.items():
        for name, text in meanings.items():
            yield Meaning(CAUSES, name, f"{what}, in why, simulate and validate", text)


def _states() -> Iterator[Meaning]:
    for what, meanings in shown_states.OF.items():
        for name, text in meanings.items():
            yield Meaning(STATES, name, what, text)


def _checks() -> Iterator[Meaning]:
    for name, text in shown_states.CHECKS.items():
        yield Meaning(CHECKS, name, "code of a line of doctor", text)


def _alerts() -> Iterator[Meaning]:
    for alert in alerts.all_alerts():
        fires = "at once" if alert.after == "0s" else f"after {alert.after}"
        facts = (
            ("severity", alert.severity),
            ("fires", fires),
            ("to do", f"docs/runbooks.md#{alert.runbook}"),
        )
        yield Meaning(ALERTS, alert.name, "alert of the chart", f"{alert.summary}. {alert.description}", facts)
