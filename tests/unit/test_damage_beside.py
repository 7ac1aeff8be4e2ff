"""Damage one, lose one, for jobs, queues and tests: what one field of one object says costs no other tenant anything.

As `test_damage`, for what is decided beside the plans. For every kind and every field of it: missing, another type,
extreme values. NEURON_DRA_DAMAGES is the number of damages that are tried.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any, Final

import pytest

from neuron_dra.core.wire import Obj
from tests.support.kinds_read import kinds_read
from tests.unit import test_damage
from tests.unit.beside_scene import EVERYBODY, Decided, Scene, owner, plural, world
from tests.unit.test_damage import ABSENT, IDENTITY, VALUES, Path, damaged, paths
from tests.unit.ultraserver_world import World

DAMAGES = int(os.environ.get("NEURON_DRA_DAMAGES", "400"))
ELSEWHERE: Final = {"leases": "it concerns the replica that reads it, and no object of a tenant: see test_leader"}
"""Kinds that are read and not damaged here nor in `test_damage`, and why."""
LEAST: Final = {
    "job-new", "set-new", "lws-new", "sts-new", "job-grows", "job-early", "job-gone",
    "queue-new", "queue-recorded", "queue-evicted", "queue-gone", "queue-bound", "nightly", "weekly",
}  # fmt: skip
"""The tenants about whom something is written."""


@pytest.fixture(scope="module")
def before() -> World:
    return world()


def cases(before: World) -> list[tuple[Any, Path, Any]]:
    """Some of all damages, the same each time: each field once, before any a second time."""
    first: dict[tuple[str, Path], list[Any]] = {}
    for key, item in before.objects.items():
        if item["kind"] in ("Node", "ResourceSlice", "ResourceClaimTemplate"):
            continue  # `test_damage` has them
        for path in paths(item):
            if path not in IDENTITY:
                first.setdefault((item["kind"], path), []).append((key, path))
    rng = random.Random(1)
    places = sorted(first.values(), key=repr)
    rng.shuffle(places)
    found: list[tuple[Any, Path, Any]] = []
    while len(found) < DAMAGES:
        found += [(*rng.choice(place), rng.choice(VALUES)) for place in places]
    return found[:DAMAGES]


def changes(found: Decided, expected: Decided, item: Obj) -> list[str]:
    """Return what is decided otherwise about the tenants whose object this is not."""
    texts: list[str] = []
    whose = owner(item)
    for name in sorted(expected.writes.keys() | found.writes.keys() | expected.verdicts.keys()):
        have, should = found.writes.get(name, []), expected.writes.get(name, [])
        if whose == EVERYBODY:
            # It may keep something from being done, and make nothing happen.
            is_right = {one[:2] for one in have} <= {one[:2] for one in should}
        else:
            is_right = name == whose or have == should
        if not is_right:
            texts.append(f"{name} has {str(have)[:300]} instead of {str(should)[:300]}")
        if name != whose and found.verdicts.get(name) != expected.verdicts.get(name):
            texts.append(f"{name} is {found.verdicts.get(name)}")
    return texts


async def decided(before: World, objects: Mapping[Any, Obj], known: Mapping[Any, Obj] | None) -> Decided:
    """Return what is decided about objects; `known`: what was read before."""
    scene = Scene(objects if known is None else known)
    await scene.read()
    if known is not None:
        scene.caches.index()
        scene.shelf.objects = objects
        await scene.read()
    return await scene.decide(before.now)


async def test_damage_costs_no_other_tenant(before: World) -> None:
    expected = await decided(before, before.objects, None)
    assert expected.writes.keys() == LEAST
    failures = []
    for number, (key, path, value) in enumerate(cases(before)):
        item = before.objects[key]
        known = before.objects if number % 2 else None
        place = f"{key} {'.'.join(map(str, path))}{' (read before)' if known else ''}"
        what = f"{place} = {'absent' if value is ABSENT else repr(value)[:40]}"
        try:
            found = await decided(before, {**before.objects, key: damaged(item, path, value)}, known)
        except Exception as err:
            failures.append(f"{what}: {err!r}")
            continue
        failures += [f"{what}: {text}" for text in changes(found, expected, item)]
    assert not failures, "\n".join(failures)


def test_each_kind_that_is_read_is_damaged(before: World) -> None:
    here = {plural(item["kind"]) for item in before.objects.values()}
    assert kinds_read() - here - {*test_damage.PLURALS.values()} == ELSEWHERE.keys()
