"""How Kustomizations use a manifest: those of its folder, and overlays in folders beside and above it.

An overlay is often changed apart from its base, so it is looked for: in the folders from three above the manifest down,
or from the root of its repository, the nearest first, and not in more than a thousand.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

FILES: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
MOST_BYTES: Final = 4 * 1024 * 1024
HEIGHT: Final = 3
"""How many folders above a manifest's are searched; the search ends at a folder with .git."""
MOST_FOLDERS: Final = 1000
"""How many folders below these are searched."""

HasOld = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class _Kustomization:
    file: Path
    document: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        return self.file.parent

    def names(self, *fields: str) -> Iterator[Path]:
        """Yield what it names in these fields, files and folders."""
        for field in fields:
            for name in self._listed(field):
                if isinstance(name, str) and _is_name(name):
                    yield (self.folder / name).resolve()

    def patches(self) -> Iterator[str]:
        """Yield its patches: the path or the text of each."""
        for patch in self._listed("patchesStrategicMerge"):
            if isinstance(patch, str):
                yield patch
        for field in ("patches", "patchesJson6902"):
            for patch in self._listed(field):
                path_or_text = patch.get("path") or patch.get("patch") if isinstance(patch, dict) else None
                if isinstance(path_or_text, str):
                    yield path_or_text

    def _listed(self, field: str) -> list[Any]:
        listed = self.document.get(field)
        return listed if isinstance(listed, list) else []


def uses(path: Path, has_old: HasOld) -> Iterator[str]:
    """Yield how a Kustomization uses the file `path` as a patch, or patches old names in what it takes from there."""
    top = _top(path.parent)
    above = [folder for folder in (path.parent, *path.parent.parents) if folder.is_relative_to(top)]
    near = [kustomization for folder in above for kustomization in _of(folder) if kustomization.file != path]
    for kustomization in near:
        if path in _files(kustomization):
            yield f"{_called(kustomization, path)} uses it as a patch"
    taking = [kustomization for kustomization in near if path in kustomization.names("resources", "bases")]
    if taking:
        everything = [*near, *_below(above, {kustomization.file for kustomization in near})]
        for kustomization in _users(path, taking, everything):
            if any(_patches_old(folder, patch, has_old) for folder, patch in _patches(kustomization)):
                yield f"{_called(kustomization, path)} patches the old names in it"


def _top(folder: Path) -> Path:
    """Return the highest folder in which a Kustomization of what is in `folder` is looked for."""
    for _ in range(HEIGHT):
        if (folder / ".git").exists() or folder.parent == folder:
            break
        folder = folder.parent
    return folder


def _of(folder: Path) -> Iterator[_Kustomization]:
    for name in FILES:
        document = _read(folder / name)
        if isinstance(document, dict):
            yield _Kustomization(folder / name, document)


def _below(above: Collection[Path], known_files: Collection[Path]) -> Iterator[_Kustomization]:
    """Yield the Kustomizations of the folders in `above`, the lowest first, without those that are known."""
    for place, files in itertools.islice(_folders(above), MOST_FOLDERS):
        if any(name in files for name in FILES):
            yield from (kustomization for kustomization in _of(place) if kustomization.file not in known_files)


def _folders(above: Collection[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders in each of `above`, which lie in one another, and their files; each folder once, in order."""
    walked: Path | None = None
    for top in above:
        for text, inside, files in os.walk(top):
            place = Path(text)
            inside[:] = sorted(name for name in inside if not name.startswith(".") and place / name != walked)
            yield place, files
        walked = top


def _users(path: Path, taking: list[_Kustomization], everything: list[_Kustomization]) -> list[_Kustomization]:
    """Return the Kustomizations that take the file, `taking` and those that name a folder of one that does."""
    users = list(taking)
    while True:
        folders = {kustomization.folder for kustomization in users}
        more = []
        for kustomization in everything:
            taken = kustomization.names("resources", "bases", "components")
            if kustomization not in users and not folders.isdisjoint(taken):
                more.append(kustomization)
        if not more:
            return users
        users += more


def _patches(kustomization: _Kustomization) -> Iterator[tuple[Path, str]]:
    """Yield the patches of a Kustomization and of its components, each with its folder."""
    for patch in kustomization.patches():
        yield kustomization.folder, patch
    for folder in kustomization.names("components"):
        for component in _of(folder):
            for patch in component.patches():
                yield folder, patch


def _files(kustomization: _Kustomization) -> Iterator[Path]:
    for patch in kustomization.patches():
        if _is_name(patch):
            yield (kustomization.folder / patch).resolve()


def _is_name(text: str) -> bool:
    """Return True if a text may be the name of a file, and not a patch."""
    return "\n" not in text and "\0" not in text


def _patches_old(folder: Path, patch: str, has_old: HasOld) -> bool:
    if _is_name(patch) and _is_file(folder / patch):
        return has_old(_text(folder / patch))
    return has_old(patch)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text that is too long for a name
        return False


def _called(kustomization: _Kustomization, path: Path) -> str:
    """Return the file of a Kustomization, from the folder of the manifest."""
    return os.path.relpath(kustomization.file, path.parent)


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(_text(path))
    except yaml.YAMLError:
        return None


def _text(path: Path) -> str:
    """Return the text of a small file; empty if there is none."""
    try:
        if path.stat().st_size <= MOST_BYTES:
            return path.read_text()
        return ""
    except (OSError, UnicodeDecodeError):
        return ""
