"""The command line of neuron-dra, and the only place where its parts are wired together."""

from __future__ import annotations

from neuron_dra import early_exit

early_exit.on_sigterm("k8s-neuron-dra-driver", "plugin")

import argparse
import contextlib
import functools
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

# grpc reads these when it is imported: no fork handlers, and no log lines of its C core.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from neuron_dra import __version__
from neuron_dra.arguments import Parser, go_style, guarded
from neuron_dra.core import program
from neuron_dra.errors import NeuronDraError, SettingsError

if TYPE_CHECKING:
    from neuron_dra.settings import PluginSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `neuron-dra` and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _write_any_text()
    parser = _parser(words)
    return guarded(program.NAME, parser, go_style(words) if words[:1] == ["plugin"] else words)


def _write_any_text() -> None:
    """Write out characters that a terminal's encoding lacks, such as those in names of a file, instead of failing."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")


def complete_main(arguments: Sequence[str] | None = None) -> int:
    """Print what kubectl offers for the last word of `kubectl neuron ...`, as `kubectl_complete-neuron`."""
    from neuron_dra import completion

    line = list(sys.argv[1:] if arguments is None else arguments)

    def names(kind: str, chosen: Mapping[str, str]) -> list[str]:
        if kind == completion.MEANING:
            from neuron_dra.ask.explain import meanings

            return sorted(set(meanings.known()))
        from neuron_dra.ask.read import known_names

        flags = [chosen.get(name, "") for name in ("kubeconfig", "context", "namespace")]
        return known_names.names(kind, *flags)

    found, directive = completion.offered(_parser(line), line, names)
    sys.stdout.write("".join(f"{each}\n" for each in [*found, f":{directive}"]))
    return 0


def _parser(words: Sequence[str]) -> Parser:
    """Return the parser of a line, with the arguments of its command alone."""
    parser = Parser(prog=program.NAME, description="Device management for AWS Trainium and Inferentia on Kubernetes.")
    parser.add_argument("--version", action="version", version=f"neuron-dra {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plugin = commands.add_parser("plugin", help="run the kubelet plugin of one node, as the DaemonSet does")
    plugin.description = "Exit code 0: a signal ended it; 1: it cannot go on; 2: a setting is wrong."
    if _wanted("plugin", words):
        from neuron_dra import settings

        settings.add_arguments(plugin)
        plugin.set_defaults(run=_run_plugin)
    if words[:1] != ["plugin"]:
        _add_other_commands(commands, words)
        completion = commands.add_parser("completion", help="print the completion script for bash and zsh")
        completion.description = "In ~/.bashrc or ~/.zshrc: source <(neuron-dra completion). Exit code 0."
        completion.set_defaults(run=lambda _: _print_completion(parser))
    return parser


def _wanted(name: str, words: Sequence[str]) -> bool:
    """Return True if a command needs its arguments: it is to run, to be explained, or to be completed."""
    return name in words[:2] or words[:1] == ["completion"]


def _print_completion(parser: Parser) -> int:
    from neuron_dra import completion

    sys.stdout.write(completion.script(parser))
    return 0


COMMANDS: Final = {
    "fake-node": ("emulation.fake_node_command", "write the sysfs, dev and DMI files of a simulated Neuron node"),
    "slices": ("node.slices_command", "print the ResourceSlices that a node would publish, without a cluster"),
    "migrate": ("ask.migrate.command", "rewrite manifests that were written for the Neuron device plugin"),
    "status": ("ask.status.command", "show nodes, free devices, UltraServers, and which pods wait"),
    "ui": ("ask.ui.command", "show the fleet as a live page in the browser"),
    "topology": ("ask.topology.command", "draw devices, links and who holds what, of a node or of all"),
    "why": ("ask.why.command", "explain why a pod, claim, node or UltraServer workload waits"),
    "top": ("ask.top.command", "show how busy devices and cores are, by the pod that has them"),
    "explain": ("ask.explain.command", "print what an attribute, a field, a condition or a reason means"),
    "simulate": ("ask.simulate.command", "show what the pods of manifests would get, and on which nodes"),
    "validate": ("ask.validate.command", "check claims, templates and pods of manifests, without a cluster"),
    "templates": ("ask.templates.command", "print ResourceClaimTemplates for the usual jobs"),
    "doctor": ("ask.doctor.command", "check an installation: each line is ok, wrong or unknown, and what to do"),
    "inspect": ("ask.inspect.command", "print the state of the plugin on this node, from its socket"),
    "uninstall-check": ("ask.uninstall.command", "print which claims and workloads still need the driver"),
    "demo": ("demo", "show how pods get devices, on simulated nodes, without a cluster"),
}
"""The other commands, with their modules, which have `add_arguments` and `run`."""


def _add_other_commands(commands: argparse._SubParsersAction[Parser], words: Sequence[str]) -> None:
    """Add the commands. Only modules of commands in `words` are imported, or all for the completion script."""
    for name, (module, text) in COMMANDS.items():
        parser = commands.add_parser(name, help=text)
        if _wanted(name, words):
            command = importlib.import_module(f"neuron_dra.{module}")
            command.add_arguments(parser)
            looks = module.startswith("ask.")
            parser.set_defaults(run=functools.partial(_run_inspection, command.run) if looks else command.run)


def _run_inspection(run: Callable[[argparse.Namespace], int], parsed: argparse.Namespace) -> int:
    """Run a command that evaluates CEL, which the DaemonSet's image cannot."""
    try:
        return run(parsed)
    except ModuleNotFoundError as err:
        raise SettingsError(f"{parsed.command} needs {err.name}; install neuron-dra[cli]") from err


def plugin_main() -> int:
    """Run the plugin as `k8s-neuron-dra-driver`, with the flags and variables of AWS's driver; return the exit code."""
    parser = Parser(prog="k8s-neuron-dra-driver", description="The kubelet plugin of neuron-dra.")
    from neuron_dra import settings

    parser.add_argument("--version", action="version", version=f"neuron-dra {__version__}")
    settings.add_arguments(parser)
    parser.set_defaults(run=_run_plugin)
    return guarded(program.NAME, parser, go_style(sys.argv[1:]))


@contextlib.contextmanager
def _long_lived() -> Iterator[None]:
    """Import modules without garbage collection, and exclude them from later collections, which saves CPU.

    aiohttp loads the system's certificate authorities when it is imported, 1.7 MiB, for connections without a TLS
    context. All connections of this program have a TLS context, so the authorities are hidden from that import.
    """
    gc.disable()
    authorities = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = os.devnull
    try:
        yield
    finally:
        del os.environ["SSL_CERT_FILE"]
        if authorities is not None:
            os.environ["SSL_CERT_FILE"] = authorities
        gc.freeze()
        gc.enable()


def _run_plugin(parsed: argparse.Namespace) -> int:
    import asyncio
    import logging

    from neuron_dra import log as logs
    from neuron_dra import settings

    flags = {name: value for name, value in vars(parsed).items() if isinstance(value, str)}
    loaded = settings.load(flags, os.environ)
    logs.configure("json" if loaded.log_format == "json" else "text", loaded.v)
    log = logging.getLogger("neuron_dra")
    log.info("neuron-dra plugin starts", extra={"version": __version__, "pid": os.getpid()})
    for name, value, source in loaded.rows():
        log.info("setting", extra={"setting": name, "value": value, "source": source})
    with _long_lived():
        from neuron_dra.kube import config
        from neuron_dra.node.plugin import Plugin
        from neuron_dra.node.timing import DEFAULT_TIMING

    credentials = DEFAULT_TIMING.client.credentials
    kube = config.from_settings(loaded.kube_api_server, loaded.kubeconfig, os.environ, credentials)
    undo = contextlib.ExitStack()
    if loaded.emulation_mode:
        loaded = undo.enter_context(_emulated(loaded))

    async def serve() -> None:
        plugin = Plugin(loaded, kube, timing=DEFAULT_TIMING)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, plugin.stop)
        await plugin.run()

    err: NeuronDraError | OSError | None = None
    try:
        with undo:
            asyncio.run(serve())
    except* (NeuronDraError, OSError) as group:
        err = _first(group)
        log.error("neuron-dra plugin ends", extra={"error": str(err)})
        log.debug("where it failed", exc_info=err)
    if err is not None:
        raise err if isinstance(err, NeuronDraError) else NeuronDraError(str(err))
    log.info("neuron-dra plugin ended")
    return 0


def _first(group: BaseExceptionGroup[NeuronDraError | OSError]) -> NeuronDraError | OSError:
    found = group.exceptions[0]
    if isinstance(found, BaseExceptionGroup):
        return _first(found)
    return found


@contextlib.contextmanager
def _emulated(loaded: PluginSettings) -> Iterator[PluginSettings]:
    """Create the simulated hardware of --emulation-mode in the data folder, and yield the settings that read it."""
    import dataclasses

    from neuron_dra.emulation import mode
    from neuron_dra.node.boot import boot_id

    root = loaded.data_folder / "emulation"
    with mode.hardware(root, loaded.emulation_mode, boot_id(loaded)):
        yield dataclasses.replace(loaded, host_root=str(root))


if __name__ == "__main__":
    sys.exit(main())
