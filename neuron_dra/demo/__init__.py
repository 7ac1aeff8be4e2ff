"""`neuron-dra demo`: pods get their devices on simulated nodes, with no cluster and no root.

Real: the plugin, one process per node, its sockets, slices, checkpoints and CDI files, and the UltraServer controller.
Simulated: the hardware (files), the API server (embedded), the kubelets (scripted) and the scheduler
(`neuron_dra.simulate`).
"""

from __future__ import annotations

import argparse

from neuron_dra.errors import NeuronDraError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra demo`."""
    parser.add_argument("--keep", action="store_true", help="leave the demo's folder (logs, CDI files) where it is")


def run(args: argparse.Namespace) -> int:
    """Show the demo; 0 when everything happened as told. Raises NeuronDraError otherwise."""
    try:
        import celpy  # noqa: F401 - the scheduler needs it later, and says less about it

        from neuron_dra.demo import main  # loads grpc, aiohttp and rich
    except ModuleNotFoundError as err:
        raise NeuronDraError(f"the demo needs {err.name}; install neuron-dra[cli]") from err
    return main.run(keep=args.keep)
