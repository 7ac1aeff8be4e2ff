"""Semantic versions, as the scheduler (github.com/blang/semver/v4) and the API server read them."""

import pytest

from neuron_dra.core import semver


def test_versions_are_ordered_by_precedence() -> None:
    ascending = [
        "0.9.9",
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0",
        "1.0.1",
    ]
    parsed = [semver.parse(text) for text in ascending]
    parsed.reverse()
    assert [str(version) for version in sorted(parsed)] == ascending


def test_build_metadata_does_not_count() -> None:
    assert semver.parse("1.0.0+a") == semver.parse("1.0.0+b")
    assert str(semver.parse("1.0.0-rc.1+a")) == "1.0.0-rc.1"
    assert hash(semver.parse("1.0.0+a")) == hash(semver.parse("1.0.0"))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("v1.0", "1.0.0"),
        ("1", "1.0.0"),
        ("01.01.01", "1.1.1"),
        ("v1.2.3-rc.1", "1.2.3-rc.1"),
        ("v01.2", "1.2.0"),
        ("1.2.03-rc.1", "1.2.3-rc.1"),
    ],
)
def test_normalize_completes_versions(text: str, read: str) -> None:
    assert str(semver.parse(text, normalize=True)) == read


@pytest.mark.parametrize(
    "text",
    [
        "1.0",
        "v1.0.0",
        "18446744073709551616.0.0",
        "1.0.0-18446744073709551616",
        "01.0.0",
        "2.26.5.0",
        "1.0.0-",
        "٣.0.0",
        "hello",
        "",
    ],
)
def test_incomplete_version_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a semantic version"):
        semver.parse(text)


@pytest.mark.parametrize("text", ["1.0-beta", "1+a", "V1.0.0", " 1.0.0", "1.2.3.4", ""])
def test_normalization_completes_no_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a semantic version"):
        semver.parse(text, normalize=True)


@pytest.mark.parametrize("text", ["1.0.0", "18446744073709551615.0.0-rc.1+b", "99999999999999999999.0.0"])
def test_api_server_admits_numbers_of_any_size(text: str) -> None:
    assert semver.is_admitted(text)
    assert not semver.is_admitted(f"v{text}")
