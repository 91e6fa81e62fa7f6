"""Run benchmarks one after the other, each in a process of its own.

    python -m benchmarks all               those of `make bench`, about seven hours; the machine must be idle
    python -m benchmarks aa loader         these
    python -m benchmarks device --minutes 9 --device gpu        a device, see device.py; it is none of `all`

One that fails costs the others nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

EXPORTS = "build/exports"
STEPS = (
    ("planted",), ("aa",), ("replay",), ("overhead",),
    ("wall_time", "--seeds", "5", "--keep", EXPORTS), ("delivered", "--from", EXPORTS),
    ("warm_start",), ("loader",), ("generation",), ("large",), ("zoo",),
)  # fmt: skip
"""Scripts with their arguments, in the order in which they are run."""


def main() -> None:
    """Run what was asked for; exit status 1 where one of them failed."""
    if sys.argv[1:2] == ["device"]:
        command = [sys.executable, str(Path(__file__).with_name("device.py")), *sys.argv[2:]]
        sys.exit(subprocess.run(command, check=False).returncode)
    names = sorted({name for name, *_ in STEPS})
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run benchmarks one after the other.")
    parser.add_argument("names", nargs="+", choices=["all", *names], metavar="NAME", help=f"all, or {', '.join(names)}")
    asked = parser.parse_args().names
    failed = []
    for name, *arguments in STEPS:
        if name in asked or "all" in asked:
            command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *arguments]
            print(f"$ python benchmarks/{name}.py {' '.join(arguments)}", flush=True)
            failed += [name] if subprocess.run(command, check=False).returncode else []
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
