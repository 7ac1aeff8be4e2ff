"""The images of a release: a base, our layer, and the settings of the Dockerfile's last stage."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from hack.bed import oci
from hack.release.base import Base, ReleaseError

INSTRUCTIONS = {"FROM", "LABEL", "RUN", "COPY", "ENV", "USER", "ENTRYPOINT"}  # RUN and COPY make our layer


@dataclass(frozen=True, slots=True)
class Stage:
    """What the last stage of a Dockerfile sets."""

    labels: dict[str, str]
    environment: dict[str, str]
    user: str
    entrypoint: list[str]


def last_stage(dockerfile: str) -> Stage:
    """Return the settings of a Dockerfile's last stage.

    Raises:
        ReleaseError: it has an instruction that this function does not know.
    """
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE)).splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line.strip()]
    begin = max(index for index, (word, _) in enumerate(pairs) if word == "FROM")
    values: dict[str, list[str]] = {name: [] for name in INSTRUCTIONS}
    for word, value in pairs[begin:]:
        if word not in INSTRUCTIONS:
            raise ReleaseError(f"the Dockerfile has {word}, which hack/release/image.py does not handle")
        values[word].append(value)

    def assignments(name: str) -> dict[str, str]:
        words = [word for value in values[name] for word in shlex.split(value)]
        return {key: text for key, _, text in (word.partition("=") for word in words)}

    [user], [entrypoint] = values["USER"], values["ENTRYPOINT"]
    return Stage(assignments("LABEL"), assignments("ENV"), user, json.loads(entrypoint))


def configuration(base: Base, stage: Stage, diff_id: str, annotations: dict[str, str]) -> dict[str, Any]:
    """Return an image's configuration: the base's, with the stage's settings and one layer more."""
    inherited = base.config.get("config") or {}
    environment = dict(each.split("=", 1) for each in inherited.get("Env") or [])
    for name, value in stage.environment.items():
        environment[name] = re.sub(r"\$(\w+)", lambda match: environment.get(match[1], ""), value)
    created = annotations["org.opencontainers.image.created"]
    history = {"created": created, "created_by": "make release", "comment": "neuron-dra below /opt/neuron-dra"}
    return {
        **{name: value for name, value in base.config.items() if name in ("architecture", "os", "variant")},
        "created": created,
        "config": {
            **{name: value for name, value in inherited.items() if name != "Cmd"},  # as an ENTRYPOINT does
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Labels": {**(inherited.get("Labels") or {}), **stage.labels, **annotations},
            "User": stage.user,
            "Entrypoint": stage.entrypoint,
        },
        "rootfs": {"type": "layers", "diff_ids": [*base.config["rootfs"]["diff_ids"], diff_id]},
        "history": [*(base.config.get("history") or []), history],
    }


def add_image(
    layout: oci.Layout, base: Base, our_layer: bytes, stage: Stage, annotations: dict[str, str]
) -> oci.Descriptor:
    """Add the image for one machine type and return its descriptor, with the platform, for an index."""
    layout.blobs |= base.layers
    ours = layout.blob(compressed(our_layer), oci.LAYER_GZIP)
    config = configuration(base, stage, oci.digest(our_layer), annotations)
    platform = {name: value for name, value in config.items() if name in ("architecture", "os", "variant")}
    notes = {**annotations, "org.opencontainers.image.base.digest": base.descriptor["digest"]}
    return {**layout.image(config, [*base.descriptors, ours], annotations=notes), "platform": platform}


def add_index(layout: oci.Layout, images: list[oci.Descriptor], name: str, annotations: dict[str, str]) -> str:
    """Make one index of the images the content of the layout, under this name and tag; return its digest."""
    index = layout.document({"mediaType": oci.INDEX, "manifests": images, "annotations": annotations})
    layout.entries = [{**index, "annotations": names(name)}]
    return str(index["digest"])


def names(name: str) -> dict[str, str]:
    """Return the annotations that give an entry of a layout its name: skopeo reads the tag, containerd the whole."""
    return {"org.opencontainers.image.ref.name": name.partition(":")[2], "io.containerd.image.name": name}


def compressed(data: bytes) -> bytes:
    """Return the bytes of gzip without a name and a time."""
    return gzip.compress(data, compresslevel=6, mtime=0)
