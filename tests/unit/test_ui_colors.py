"""The colors of the page: each means one thing, and outlines and letters can be seen, light and dark (4.09)."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from neuron_dra.ask.ui import files
from neuron_dra.ask.world.states import StateKind

OUTLINE, TEXT = 3.0, 4.5
"""The least contrast of parts of a picture and of text (WCAG 2.2, success criteria 1.4.11 and 1.4.3)."""
VARIABLE = re.compile(r"--([\w-]+): (#[0-9a-f]{6});")
STATES = ("free", "held", "reserved", "faulty", "closed", "down", "silent", "unknown")
SCHEMES = ("light", "dark")


def colors(scheme: str) -> dict[str, str]:
    """Return the variables of a scheme; the dark one replaces some of the light one."""
    light, dark = re.findall(r":root \{(.*?)\}", files.read()["app.css"].decode(), re.DOTALL)
    found = dict(VARIABLE.findall(light))
    return found if scheme == "light" else found | dict(VARIABLE.findall(dark))


def luminance(color: str) -> float:
    parts = []
    for at in (1, 3, 5):
        value = int(color[at : at + 2], 16) / 255
        parts.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_outlines_of_free_devices_can_be_seen(scheme: str) -> None:
    found = colors(scheme)
    for ground in ("free", "ground"):
        assert contrast(found["edge"], found[ground]) >= OUTLINE, ground


@pytest.mark.parametrize("scheme", SCHEMES)
def test_letters_on_states_can_be_read(scheme: str) -> None:
    found = colors(scheme)
    for state in (*STATES, "other"):
        assert contrast(found[state], found[f"{state}-ink"]) >= TEXT, state
    for text in ("ink", "quiet", "link"):
        for ground in ("ground", "raised"):
            assert contrast(found[text], found[ground]) >= TEXT, (text, ground)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_color_means_one_thing(scheme: str) -> None:
    found = colors(scheme)
    assert Counter(found[state] for state in STATES).most_common(1)[0][1] == 1


def test_each_state_of_a_node_has_a_color_of_its_own() -> None:
    text = files.read()["states.js"].decode()
    table = re.search(r"STATES = \{(.*?)\n\};", text, re.DOTALL)
    assert table is not None
    styles = dict(re.findall(r'^\s*"?([A-Z!?])"?: \["(\w+)"', table[1], re.MULTILINE))
    assert styles.keys() == {kind.value for kind in StateKind}
    assert sorted(styles.values()) == sorted(STATES)
