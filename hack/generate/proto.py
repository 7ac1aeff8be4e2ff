"""Generate neuron_dra/gen from proto/. `--check` compares instead, and fails on a difference."""

from __future__ import annotations

import argparse
import filecmp
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
PACKAGE = "neuron_dra/gen"


def generate(out: Path) -> list[Path]:
    """Run protoc on every file of proto/ and return the files that it wrote, relative to `out`."""
    from grpc_tools import protoc

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # protoc's plugins
    sources = sorted(PROTO.rglob("*.proto"))
    arguments = [
        "protoc",
        # Mapped, so that the generated modules import each other by their full names.
        f"--proto_path={PACKAGE}={PROTO}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
        *[f"{PACKAGE}/{source.relative_to(PROTO)}" for source in sources],
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")
    gen = out / PACKAGE
    (gen / "__init__.py").write_text('"""Generated from proto/ by hack/generate/proto.py; never edited."""\n')
    for module in list(gen.rglob("*.py")):
        for folder in module.relative_to(gen).parents:
            (gen / folder / "__init__.py").touch()
    for stale in gen.rglob("*_pb2_grpc.py"):
        if "class " not in stale.read_text():
            stale.unlink()
    return sorted(path.relative_to(out) for path in gen.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the files in the tree instead of writing")
    check = parser.parse_args().check
    if not check:
        subprocess.run(["rm", "-rf", str(ROOT / PACKAGE)], check=True)
        print(f"{len(generate(ROOT))} files in {PACKAGE}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
        present = sorted(
            path.relative_to(ROOT) for path in (ROOT / PACKAGE).rglob("*") if path.is_file() and path.suffix != ".pyc"
        )
        differing = [
            str(path)
            for path in sorted(set(fresh) | set(present))
            if path not in fresh
            or path not in present
            or not filecmp.cmp(Path(folder) / path, ROOT / path, shallow=False)
        ]
    if differing:
        print("neuron_dra/gen differs from proto/; run `make gen`:", *differing, sep="\n  ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
