"""`neuron-dra inspect`: the state of the plugin on this node, from its socket."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_dra.ask.read.timing import DEFAULT_TIMING
from neuron_dra.errors import SettingsError

if TYPE_CHECKING:
    from neuron_dra.ask.inspect.state import PluginState

EXAMPLES = """\
examples, as root on the node, or in the driver's pod:
  neuron-dra inspect
  kubectl exec -n neuron-dra-driver POD -- neuron-dra inspect -o json

Exit code 0: nothing is wrong; 1: not registered, not published, or a device is unhealthy; 2: no plugin answers."""
FOLDER = "/var/lib/kubelet/plugins/neuron.aws.com"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra inspect`."""
    parser.description = (
        "Print what the plugin on this node sees and does: devices with links, health and claims, prepared claims, the "
        "last publish, its reservation. It reads the service NodeInspector on the plugin's socket."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--socket", default="", metavar="FILE", help=f"the plugin's socket (default {FOLDER}/dra*.sock)"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "wide", "json", "yaml"),
        default="text",
        help="wide: the settings in force too",
    )


def run(args: argparse.Namespace) -> int:
    """Print the state and return the exit code."""
    from neuron_dra.ask.inspect import text as node_text
    from neuron_dra.ask.inspect.state import problems
    from neuron_dra.ask.render import terminal

    path, state = read(args.socket)
    if args.output in ("json", "yaml"):
        from google.protobuf.json_format import MessageToDict

        shown = functools.partial(MessageToDict, always_print_fields_with_no_presence=True)
        parts = {name: shown(part) for name, part in state.parts().items()}
        terminal.write_data("PluginState", {"socket": str(path), **parts}, args.output)
    else:
        terminal.write(node_text.lines(state, wide=args.output == "wide"))
    if problems(state):
        return 1
    return 0


def read(socket: str, *, folder: str = FOLDER, call_s: float = DEFAULT_TIMING.call_s) -> tuple[Path, PluginState]:
    """Return the socket of the plugin that answers, of several the newest, and its state. Raises SettingsError.

    `socket` is the plugin's, empty for those in `folder`; `call_s` is the limit of each call.
    """
    if socket:
        paths = [Path(socket)]
    else:
        paths = sorted(Path(folder).glob("dra*.sock"), key=_age)
    failures = []
    for path in paths:
        try:
            return path, _ask(path, call_s)
        except ConnectionError as err:
            failures.append(f"{path}: {err}")
    where = "; ".join(failures) or f"{folder} has no socket"
    raise SettingsError(f"no plugin answers ({where}): is this a node where the driver runs, and are you root?")


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0


def _ask(path: Path, call_s: float) -> PluginState:
    """Return the state of the plugin at a socket. Raises ConnectionError."""
    import grpc

    from neuron_dra.ask.inspect.state import PluginState
    from neuron_dra.gen.neuron.dra.v1 import inspector_pb2 as pb
    from neuron_dra.gen.neuron.dra.v1 import inspector_pb2_grpc

    with grpc.insecure_channel(f"unix:{path.absolute()}") as channel:
        stub = inspector_pb2_grpc.NodeInspectorStub(channel)

        def call(method: Callable[..., Any], request: object) -> Any:
            return method(request, timeout=call_s)

        try:
            return PluginState(
                status=call(stub.GetStatus, pb.GetStatusRequest()),
                devices=call(stub.ListDevices, pb.ListDevicesRequest()),
                claims=call(stub.ListPreparedClaims, pb.ListPreparedClaimsRequest()),
                reservation=call(stub.GetReservation, pb.GetReservationRequest()),
                configuration=call(stub.GetConfiguration, pb.GetConfigurationRequest()),
            )
        except grpc.RpcError as err:
            code = getattr(err, "code", None)
            raise ConnectionError(code().name.lower().replace("_", " ") if code else str(err)) from err
