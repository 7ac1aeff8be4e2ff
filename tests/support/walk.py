"""Records which modules call which, to test that calls only go down."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Return:
    """A call back up: `module`, which `caller` calls, is called again by what `module` called."""

    module: str
    caller: str
    function: str


class Walk:
    """A context manager that records the calls between modules of `packages`, in this thread and in those it starts.

    Modules of `uncounted` packages are transparent: their calls count as calls of their caller. A generator that
    another module consumes counts as a call of the generator's module, and a coroutine that is resumed as a call by the
    module that awaits it.
    """

    def __init__(self, packages: Iterable[str], uncounted: Iterable[str] = ()) -> None:
        self._packages = tuple(packages)
        self._uncounted = tuple(uncounted)
        self._module_of: dict[CodeType, str] = {}
        self.modules: dict[str, None] = {}
        """The modules in the order of their first call."""
        self.calls: Counter[tuple[str, str]] = Counter()
        """The number of calls by caller and callee, without calls within a module."""
        self.returns: Counter[Return] = Counter()
        """The calls back up."""
        self.stays: list[str] = []
        """The modules in the order in which a reader meets them.

        A function counts when it is first called, and functions of one module in a row are one stay.
        """
        self._met: set[CodeType] = set()

    def __enter__(self) -> Walk:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        module = self._module(frame)
        if not module:
            return
        self.modules.setdefault(module)
        self._meet(frame.f_code, module)
        below = self._below(frame)
        caller = next(below, "")
        if caller in ("", module):
            return
        self.calls[caller, module] += 1
        if module in below:
            self.returns[Return(module, caller, frame.f_code.co_qualname)] += 1

    def _meet(self, code: CodeType, module: str) -> None:
        """Count the first call of a function, but for the unnamed ones, which belong to the function that has them."""
        if code in self._met or code.co_name.startswith("<"):
            return
        self._met.add(code)
        if self.stays[-1:] != [module]:
            self.stays.append(module)

    @property
    def came_back(self) -> int:
        """How often a reader comes back to a module."""
        return len(self.stays) - len(set(self.stays))

    def _below(self, frame: FrameType) -> Iterator[str]:
        found = frame.f_back
        while found is not None:
            module = self._module(found)
            if module:
                yield module
            found = found.f_back

    def _module(self, frame: FrameType) -> str:
        """Return the module of a frame, empty if it does not count."""
        code = frame.f_code
        found = self._module_of.get(code)
        if found is None:
            name = str(frame.f_globals.get("__name__"))
            counted = _is_in(name, self._packages) and not _is_in(name, self._uncounted)
            found = self._module_of[code] = name if counted and code.co_name != "<module>" else ""
        return found


def _is_in(module: str, packages: Iterable[str]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in packages)
