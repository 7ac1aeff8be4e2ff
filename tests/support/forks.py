"""Processes that are forked from one that has imported the programs' modules, so each starts in a moment."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext
from typing import Final

PRELOADED: Final = [
    "tests.support.crash_points",
    "tests.support.forked_command",
    "tests.support.forked_controller",
    "tests.story.crash_scene",
    "neuron_dra.ask.read.cluster",
    "neuron_dra.ask.top.command",
    "neuron_dra.ask.why.command",
]
"""A test's process has one fork server, so this is what any test needs of it."""


def context() -> ForkServerContext:
    """Return the context that starts such processes."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    return made
