"""`neuron-dra demo`: pods get devices on simulated nodes, without a cluster and without root.

Real are the plugin, one process per node, its sockets, slices, checkpoints and CDI files, and the UltraServer
controller. Simulated are the hardware (files), the API server with its controllers (embedded), the kubelets (scripted)
and the scheduler (`neuron_dra.simulate`).
"""

from __future__ import annotations

import argparse

from neuron_dra.errors import NeuronDraError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra demo`."""
    parser.description = (
        "Show how pods get devices, on simulated nodes, without a cluster. Exit code 0: all steps happened; 1: one "
        "did not."
    )
    parser.add_argument(
        "--keep", action="store_true", help="then leave the cluster up, with a kubeconfig, until Ctrl-C"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo and return 0. Raises NeuronDraError if a step does not happen as expected."""
    try:
        from neuron_dra.demo import main  # loads grpc, aiohttp and rich
    except ModuleNotFoundError as err:
        raise NeuronDraError(f"the demo needs {err.name}; install neuron-dra[cli]") from err
    return main.run(keep=args.keep)
