"""The id of the host's current boot: claims that were prepared in an earlier boot are gone."""

from __future__ import annotations

import contextlib
from pathlib import Path

from neuron_dra.errors import SettingsError
from neuron_dra.settings import PluginSettings


def boot_id(settings: PluginSettings) -> str:
    """Return the id of this boot of the host. Raises SettingsError if no file has it."""
    root = Path(settings.host_root or "/")
    for path in (Path(settings.boot_id_file), root / "proc/sys/kernel/random/boot_id"):
        with contextlib.suppress(OSError):
            text = path.read_text().strip()
            if text:
                return text
    raise SettingsError(
        f"no boot id: neither {settings.boot_id_file} nor {root / 'proc/sys/kernel/random/boot_id'} can be read"
    )
