"""Words for devices, counts and names, the same in all commands. Pure."""

from __future__ import annotations

import difflib
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from neuron_dra.core import members, names
from neuron_dra.core.catalogue import InstanceType

_PCI: Final = re.compile(r"pci-[0-9a-f]{4}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7]")
FEW: Final = 3
"""Fewer devices of another driver are named one by one."""


def ranges(ids: Iterable[int], *, between: str = " ", least: int = 3) -> str:
    """Return numbers as text with ranges, such as "0-3 8 9"; fewer than `least` consecutive numbers make no range."""
    parts: list[list[int]] = []
    for number in sorted(ids):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    texts: list[str] = []
    for part in parts:
        if len(part) >= least:
            texts.append(f"{part[0]}-{part[-1]}")
        else:
            texts += map(str, part)
    return between.join(texts)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 device", "2 devices"."""
    if number == 1:
        return f"{number} {noun}"
    plural = f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"
    return f"{number} {plural}"


def amount(published: Sequence[str]) -> str:
    """Return how many published devices these are, by their names; an UltraServer publishes a node as one."""
    return count(len(published), "node" if names.NODE_DEVICE in published else "device")


@functools.lru_cache(maxsize=16384)
def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """Return a key that sorts names as a person counts: node-2 before node-10."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in _PARTS.findall(text))


_PARTS: Final = re.compile(r"\d+|\D+")


def listed(texts: Iterable[str], most: int = 4) -> str:
    """Return texts separated by commas, the first `most` of them."""
    all_texts = list(texts)
    more = f" and {len(all_texts) - most} more" if len(all_texts) > most else ""
    return ", ".join(all_texts[:most]) + more


def devices(published: Sequence[str], spec: InstanceType | None = None) -> str:
    """Return names of published devices, short: "devices 0-3", "device 7", "neuron-node-0".

    With the instance type, a connected set is the devices that it consists of.
    """
    numbers, other_names = [], []
    for name in published:
        number = name.removeprefix(names.DEVICE_PREFIX)
        whole = members.of(name, spec)
        if number != name and number.isdigit():
            numbers.append(int(number))
        elif whole is not None and whole.cores is None:
            numbers += whole.ids
        else:
            other_names.append(name)
    if not numbers:
        return ", ".join(_in_short(other_names))
    noun = "device" if len(numbers) == 1 else "devices"
    return ", ".join([f"{noun} {ranges(numbers)}", *_in_short(other_names)])


def _in_short(other_names: Iterable[str]) -> list[str]:
    """Return names of devices of other drivers, of which one may have many: "efa 0-15" for efa-0 to efa-15.

    Devices that are named by their PCI function have no numbers: "pci-0000-10-19-0 and 7 more".
    """
    other_names = list(other_names)
    by_function = sorted(name for name in other_names if _PCI.fullmatch(name))
    short: list[str] = []
    if len(by_function) >= FEW:
        other_names = [name for name in other_names if name not in by_function]
        short.append(f"{by_function[0]} and {len(by_function) - 1} more")
    numbered: dict[str, list[int]] = defaultdict(list)
    for name in other_names:
        prefix, _, number = name.rpartition("-")
        if prefix and number.isdigit() and not name.startswith("neuron"):
            numbered[prefix].append(int(number))
        else:
            short.append(name)
    for prefix, numbers in numbered.items():
        if len(numbers) < FEW:
            short += [f"{prefix}-{number}" for number in numbers]
        else:
            short.append(f"{prefix} {ranges(numbers)}")
    return sorted(short)


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return the known name that differs in case and underscores only, or resembles `name`; empty if none does."""
    plain = {candidate.lower().replace("_", ""): candidate for candidate in candidates}
    plain_name = name.lower().replace("_", "")
    if plain_name in plain:
        near = [plain_name]
    else:
        near = difflib.get_close_matches(plain_name, plain, n=1, cutoff=0.6)
    if near:
        return plain[near[0]]
    return ""


def likeness(name: str, other: str) -> float:
    """Return how much a name resembles another one, from 0 to 1. Names that differ in a number alone are near by it."""
    if name == other:
        return 1.0
    numbers, other_numbers = (re.findall(r"\d+", text) for text in (name, other))
    if numbers and len(numbers) == len(other_numbers) and re.sub(r"\d+", "", name) == re.sub(r"\d+", "", other):
        pairs = zip(numbers, other_numbers, strict=True)
        distance = sum(abs(int(number[:9]) - int(other_number[:9])) for number, other_number in pairs)
        return 0.99 - 0.1 * distance / (1 + distance)
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio()


def by_nearness(name: str, candidates: Iterable[str], uses: Mapping[str, int]) -> list[str]:
    """Return names, those first that resemble `name`, the nearest first, then those with the most uses."""

    def rank(candidate: str) -> tuple[float, int, str]:
        resembles = likeness(name, candidate)
        return (-resembles if resembles >= _ALIKE else 0.0, -uses.get(candidate, 0), candidate)

    return sorted(candidates, key=rank)


_ALIKE: Final = 0.6


def host(name: str, node_names: Iterable[str]) -> str:
    """Return the node that a name means, which may lack the node's domain; the name if it means none, or several."""
    hosts = []
    for node_name in node_names:
        if node_name == name:
            return name
        if node_name.partition(".")[0] == name:
            hosts.append(node_name)
    if len(hosts) == 1:
        return hosts[0]
    return name


def cell(value: object) -> str:
    """Return a published value as CEL writes it."""
    if isinstance(value, bool):
        if value:
            return "true"
        return "false"
    if isinstance(value, str):
        return f"'{value}'"
    return str(value)
