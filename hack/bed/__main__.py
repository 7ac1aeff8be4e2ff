"""`hack/testbed/testbed`, once Python has found the package."""

import os
import sys

from hack.bed.cli import main

# The launcher put the repository in front for this process; the programs that it starts have paths of their own.
_, _, others = os.environ.pop("PYTHONPATH", "").partition(os.pathsep)
if others:
    os.environ["PYTHONPATH"] = others
sys.exit(main(sys.argv[1:]))
