"""The commands that README and docs show in blocks of code: what each is, what it prints there, and who runs it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hack.site import pages

SHELL: Final = ("sh", "console", "")
PROGRAMS: Final = (
    "cosign", "deploy/install.sh", "docker", "for", "grpcurl", "head", "helm", "kubectl", "make", "neuron-dra",
    "neuron-ultraserver-controller", "pip", "source", "torchrun", "export",
)  # fmt: skip
"""What the commands begin with; a block without a name of a language is a shell's if its first line does."""
_BLOCK: Final = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """A command on a page; `output` is what the page shows of its output, empty if it shows none."""

    page: str
    command: str
    output: str = ""


def shown() -> Iterator[Shown]:
    """Yield the commands of the pages by hand, in their order; those in reports and the changelog are history."""
    for path in pages.sources().values():
        name = str(path.relative_to(pages.ROOT))
        if name.startswith(("docs/reports/", "docs/adr/")) or name == "CHANGELOG.md":
            continue
        for indent, language, text in _BLOCK.findall(path.read_text()):
            body = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
            if language == "console":
                yield from _of_console(name, body)
            elif language in SHELL and body.split(maxsplit=1)[0] in PROGRAMS:
                yield from (Shown(name, command) for command in _joined(body))


def _of_console(page: str, body: str) -> Iterator[Shown]:
    """Yield what follows a prompt, with the lines up to the next one."""
    joined = body.replace("\\\n", "")
    for part in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Shown(page, _plain(command), output)


def _joined(body: str) -> Iterator[str]:
    """Yield the commands of a script: lines that are continued count as one, those that are indented as a part."""
    text = body.replace("\\\n", "")
    lines = re.sub(r"\n[ \t]+", " ", text).splitlines()
    yield from (_plain(line) for line in lines if line.strip() and line not in ("done",))


def _plain(command: str) -> str:
    """Return a command without its comment, and with single spaces."""
    return " ".join(re.sub(r"\s#\s.*", "", command).split())


ON_THE_DEMO: Final = (
    r"kubectl apply -f deploy/", r"kubectl wait .* pod/pod0", r"kubectl get ", r"kubectl -n neuron-dra-driver get ",
    r"kubectl describe ", r"kubectl (label|annotate) ", r"kubectl taint ",
    r"kubectl delete (nusw|node) ", r"neuron-dra (why|doctor|migrate|topology|status|uninstall-check|explain)",
    r"neuron-ultraserver-controller plan ",
)  # fmt: skip
"""How commands begin that run on the demo's cluster; others need a release, a container or a browser."""
NOT_THERE: Final = (r"neuron-dra why (nus/|pod/p$)", r"kubectl get deployment .*migrate", r"kubectl describe nusq ")
"""Of these, those about objects that the demo's cluster does not have; the test bed's has them."""
NAMES: Final = {
    "NODE": "spare",
    "POD": "seventeen",
    "pod/NAME": "pod/seventeen",
    "NAMESPACE": "default",
    "WORD": "unhealthy",
}
"""What stands for the words in capital letters of a command."""


def on_the_demo() -> list[Shown]:
    """Return the commands of the pages that run on the demo's cluster, each once, in an order in which they work."""
    found = {}
    for each in shown():
        if _begins(each.command, ON_THE_DEMO) and not _begins(each.command, NOT_THERE):
            found[each.command] = each
    return sorted(found.values(), key=lambda each: " delete " in each.command)


def _begins(command: str, starts: Iterable[str]) -> bool:
    return any(re.match(start, command) for start in starts)


def named(command: str) -> str:
    """Return a command with names in place of words in capital letters."""
    for word, name in NAMES.items():
        command = re.sub(rf"(?<![\w$]){word}\b", name, command)
    return command


MARKS: Final[Mapping[str, str]] = {
    r"cosign ": "signs with keys that a reader has; tests/tools/test_release_signed.py runs the commands with a key",
    r"deploy/install\.sh ": "needs a cluster: tests/bed/test_install_script.py",
    r"docker ": "needs docker and a registry; hack/testbed builds the same image",
    r"export ": "has paths that the demo prints",
    r"for kind in nus nusw": "a way out for emergencies, on a cluster without the controller",
    r"grpcurl ": "needs the controller or the plugin: tests/contract asks the same services",
    r"head -1 ": "runs in a container with a claim: tests/bed/test_device_metadata_on_a_real_kubelet.py",
    r"helm (install|upgrade|uninstall|rollback|test)": "needs a cluster and a release: tests/bed/releases.py",
    r"helm ": "needs a cluster",
    r"kubectl (-n argocd )": "needs Argo CD: tests/bed/gitops.py",
    r"kubectl (neuron|exec POD|exec -n neuron-dra-driver POD)": "needs a cluster: neuron-dra runs the same below",
    r"kubectl ": "needs a cluster: tests/tools/test_documented_on_the_demo.py, or for other objects the test bed",
    r"make ": "a target of the Makefile: tests/tools/test_documented_commands.py checks that it exists",
    r"neuron-dra (migrate|doctor|top|ui|why) ?": (
        "needs a cluster, a browser or a file of the reader: tests/tools/test_documented_on_the_demo.py runs most"
    ),
    r"neuron-dra explain (WORD|REASON|NAME)": "stands for any word",
    r"neuron-ultraserver-controller plan ": "needs a file that kubectl writes; tests/unit/test_plan_command.py",
    r"pip install ": "needs a wheel of a release: .github/workflows/ci.yaml installs it",
    r"source ": "for the reader's shell: tests/unit/test_completion.py",
    r"torchrun ": "runs in a container of a job: tests/bed runs deploy/examples/ultraservers/torchrun-job.yaml",
}
"""Why a command is not run as it stands, by how it begins: the first that matches."""


def mark(command: str) -> str:
    """Return why a command is not run by the test of this folder; empty if nothing says so."""
    return next((why for start, why in MARKS.items() if re.match(start, command)), "")
