"""The software bill of materials of an image, in CycloneDX JSON: Python distributions, Debian packages, the base's Python."""

from __future__ import annotations

import datetime
import email
import uuid
from collections.abc import Iterator

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.version import Version

from hack.bed import oci
from hack.release.base import Base, flatten

LONGEST_LICENSE = 100  # some distributions have the whole text in the field


def sbom(name: str, version: str, image: oci.Descriptor, base: Base, our_layer: bytes, epoch: int) -> bytes:
    """Return the SBOM of one machine type's image."""
    purl = PackageURL("oci", name=name, version=image["digest"], qualifiers={"arch": base.architecture})
    root = Component(name=name, version=version, type=ComponentType.CONTAINER, purl=purl, bom_ref=str(purl))
    files = base.files | flatten([our_layer])
    found = {str(each.purl): each for each in (*_python(files), *_debian(files, base), *_interpreter(base))}
    bom = Bom(
        components=found.values(),
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, str(purl)),  # the same for the same image
    )
    bom.metadata.component = root
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(epoch, datetime.UTC)
    bom.register_dependency(root, found.values())
    return (JsonV1Dot6(bom).output_as_string(indent=1) + "\n").encode()


def _component(purl: PackageURL, license_text: str = "") -> Component:
    licenses = [LicenseFactory().make_from_string(license_text)] if 0 < len(license_text) <= LONGEST_LICENSE else []
    return Component(
        name=purl.name,
        version=purl.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        licenses=licenses,
    )


def _python(files: dict[str, bytes | None]) -> Iterator[Component]:
    """Yield the distributions that have a .dist-info folder, those of the base included."""
    for name, content in files.items():
        if name.endswith(".dist-info/METADATA") and content is not None:
            fields = email.message_from_bytes(content)
            version = str(Version(fields["Version"]))  # our 1.2.3-rc.1 is 1.2.3rc1 to Python
            purl = PackageURL("pypi", name=fields["Name"].lower().replace("_", "-"), version=version)
            yield _component(purl, (fields["License-Expression"] or fields["License"] or "").strip())


def _debian(files: dict[str, bytes | None], base: Base) -> Iterator[Component]:
    """Yield the packages that dpkg has installed; images without dpkg have one file each in status.d."""
    for name, content in files.items():
        if name.startswith("var/lib/dpkg/status") and content is not None and not name.endswith(".md5sums"):
            for paragraph in content.decode().split("\n\n"):
                fields = email.message_from_string(paragraph)
                state = fields.get("Status", "install ok installed")
                if fields["Package"] and fields["Version"] and state.endswith(" installed"):
                    arch = {"arch": fields["Architecture"] or base.architecture}
                    yield _component(PackageURL("deb", "debian", fields["Package"], fields["Version"], arch))


def _interpreter(base: Base) -> Iterator[Component]:
    """Yield the Python that an official Python image is built with; elsewhere it is a Debian package."""
    environment = dict(each.split("=", 1) for each in base.config.get("config", {}).get("Env") or [])
    if version := environment.get("PYTHON_VERSION"):
        yield _component(PackageURL("generic", name="python", version=version))
