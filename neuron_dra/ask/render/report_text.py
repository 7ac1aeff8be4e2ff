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
    report_lines: list[str] = []
    if not report.findings:
        report_lines += terminal.wrapped(_headed(report), rest="  ")
    for number, finding in enumerate(report.findings):
        if number == 0:
            head = f"{_headed(report)}: {finding.text}"
        else:
            head = f"also: {finding.text}"
        text = terminal.wrapped(head, rest="  ")
        report_lines += [terminal.colored(line, "bold") if number == 0 else line for line in text]
        report_lines += details(finding)
    for note in report.notes:
        report_lines += terminal.wrapped(note, first="note: ", rest="      ")
    return report_lines


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
        first, *other_reports = same
        kind = first.subject.partition(" ")[0]
        named = words.listed((report.subject.removeprefix(f"{kind} ") for report in other_reports), _NAMED)
        shown.append(replace(first, notes=(f"the same of {named}", *first.notes)))
    texts = ["\n".join(lines(report)) for report in shown]
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
    cause_message = cause.partition(": ")[2]
    return message in cause or (cause_message in message and len(cause_message) > _REPEATED * len(message))


def details(finding: Finding) -> list[str]:
    """Return facts and changes of a finding."""
    detail_lines: list[str] = []
    last = ""
    for name, text in finding.facts:
        if name in _MESSAGES and _is_repeated(finding.text, text):
            continue
        label = "" if name == last else name
        last = name
        detail_lines += terminal.advice(text, first=f"  {label:<{_LABEL}} ", rest=" " * (_LABEL + 3))
    for number, change in enumerate(finding.changes):
        label = "to change" if number == 0 else "or"
        indent = " " * (_LABEL + 3)
        shown = terminal.advice(change.text, first=f"  {label:<{_LABEL}} ", rest=indent)
        if change.steps:
            shown += terminal.wrapped(change.steps, first=indent, rest=indent)
        shown += terminal.wrapped(change.outcome, first=indent, rest=indent)
        detail_lines += [terminal.colored(line, "green") for line in shown]
    return detail_lines
