"""`neuron-dra demo`: pods get their devices on simulated nodes, with no cluster and no root.

Real: the plugin, one process per node, its sockets, slices, checkpoints and CDI files. Simulated: the hardware (files),
the API server (embedded), the kubelets (scripted) and the scheduler (`neuron_dra.simulate`).
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `neuron-dra demo`."""
    parser.add_argument("--keep", action="store_true", help="leave the demo's folder (logs, CDI files) where it is")


def run(args: argparse.Namespace) -> int:
    """Show the demo; 0 when everything happened as told. Raises NeuronDraError otherwise."""
    from neuron_dra.demo import main  # loads grpc, aiohttp and rich

    return main.run(keep=args.keep)
