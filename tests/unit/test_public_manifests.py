"""18, acceptance 2: a hundred public manifests schedule as they are or through `migrate` alone, or are listed with why.

Each was reduced by us to the fields that matter; tests/data/public-manifests names its source.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support import public_manifests as public
from tests.support.public_manifests import AS_IT_IS, MIGRATED, NEWEST, NOT, OLDER, Manifest, Verdict

MANIFESTS = public.load()
ASKED = 100


@pytest.mark.parametrize("version", [NEWEST, OLDER])
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each.id)
def test_public_manifests_get_what_they_request(manifest: Manifest, version: str, tmp_path: Path) -> None:
    """(18.2)"""
    expected = Verdict(manifest.results[version], manifest.reasons[version])
    assert public.judge(manifest, version, tmp_path) == expected


def test_there_are_a_hundred_manifests_with_a_source() -> None:
    """(18.2)"""
    assert len({each.id for each in MANIFESTS}) == len(MANIFESTS) >= ASKED
    assert all(each.path and (each.source or each.path.startswith("https://")) for each in MANIFESTS)


def test_a_reason_is_named_exactly_where_a_manifest_does_not_schedule() -> None:
    """(18.2)"""
    for each in MANIFESTS:
        for version in (NEWEST, OLDER):
            assert (each.results[version] == NOT) == bool(each.reasons[version]), each.id
    assert {result for each in MANIFESTS for result in each.results.values()} == {AS_IT_IS, MIGRATED, NOT}


def test_the_page_lists_the_manifests() -> None:
    """(18.2) docs/reports/public-manifests.md; `python -m tests.support.public_manifests` writes it."""
    assert public.PAGE.read_text() == public.page(MANIFESTS)
    counts = Counter(each.results[NEWEST] for each in MANIFESTS)
    assert f"| {NEWEST} | {counts[AS_IT_IS]} | {counts[MIGRATED]} | {counts[NOT]} |" in public.page(MANIFESTS)
