"""A report as text: the subject with the first cause in one line, then facts and changes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from neuron_dra.ask.render import terminal, words
from neuron_dra.ask.render.findings import Finding, Report

_LABEL = 11
_MESSAGES = ("event", "scheduler", "status", "message")
"""Labels of facts that are the messages of other programs."""
_REPEATED = 0.7
"""The share of a message that the first line has if it repeats the message."""
_ALIKE = 3
"""From this number on, equal reports are one."""
_NAMED = 12
"""Objects with equal reports that are named; the others are counted."""


def lines(report: Report) -> list[str]:
    """Return the report, as wide as the terminal."""
    found: list[str] = []
    if not report.findings:
        found += terminal.wrapped(_headed(report), rest="  ")
    for number, finding in enumerate(report.findings):
        if number == 0:
            head = f"{_headed(report)}: {finding.text}"
        else:
            head = f"also: {finding.text}"
        text = terminal.wrapped(head, rest="  ")
        found += [terminal.colored(line, "bold") if number == 0 else line for line in text]
        found += details(finding)
    for note in report.notes:
        found += terminal.wrapped(note, first="note: ", rest="      ")
    return found


def together(reports: Sequence[Report]) -> list[str]:
    """Return reports one after the other; those with a problem that differ in their subject alone are one."""
    groups: dict[Hashable, list[Report]] = {}
    for place, report in enumerate(reports):
        key = place if report.fine else _without_subject(report)
        groups.setdefault(key, []).append(report)
    shown: list[Report] = []
    for same in groups.values():
        if len(same) < _ALIKE:
            shown += same
            continue
        first, *others = same
        kind = first.subject.partition(" ")[0]
        named = words.listed((each.subject.removeprefix(f"{kind} ") for each in others), _NAMED)
        shown.append(replace(first, notes=(f"the same of {named}", *first.notes)))
    texts = ["\n".join(lines(each)) for each in shown]
    return "\n\n".join(texts).split("\n")


def _without_subject(report: Report) -> Hashable:
    """Return what a report says, but for its subject, and for what would become of it after a change."""
    causes: list[Hashable] = []
    for finding in report.findings:
        changes = tuple([change.text for change in finding.changes])
        causes.append((finding.code, finding.text, finding.facts, changes))
    return report.state, tuple(causes), report.notes


def _headed(report: Report) -> str:
    """Return subject and state; a state of several pods, as in "2 pods wait", is a clause of its own."""
    if report.state[:1].isdecimal():
        return f"{report.subject}: {report.state}"
    return f"{report.subject} {report.state}"


def _is_repeated(cause: str, message: str) -> bool:
    """Return True if the first line has all of a message, but for the words that Kubernetes puts before it."""
    said = cause.partition(": ")[2]
    return message in cause or (said in message and len(said) > _REPEATED * len(message))


def details(finding: Finding) -> list[str]:
    """Return facts and changes of a finding."""
    found: list[str] = []
    last = ""
    for name, text in finding.facts:
        if name in _MESSAGES and _is_repeated(finding.text, text):
            continue
        label = "" if name == last else name
        last = name
        found += terminal.advice(text, first=f"  {label:<{_LABEL}} ", rest=" " * (_LABEL + 3))
    for number, change in enumerate(finding.changes):
        label = "to change" if number == 0 else "or"
        indent = " " * (_LABEL + 3)
        shown = terminal.advice(change.text, first=f"  {label:<{_LABEL}} ", rest=indent)
        shown += terminal.wrapped(change.outcome, first=indent, rest=indent)
        found += [terminal.colored(line, "green") for line in shown]
    return found
