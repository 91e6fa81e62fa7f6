"""What a framework finds on this machine, asked in a process of its own.

A framework that looks for devices may print a page of warnings, initialise a driver or crash; the tool itself imports
none. As a program, with a framework as its argument, this file prints one JSON document.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

from autotune.backends import Found, entry_of, framework_version, load_backend
from autotune.errors import HarnessError
from autotune.trial import module_command, package_path

TIMEOUT_S = 180.0


def find_devices(framework: str) -> Found:
    """Ask `framework` in a child. Raises MissingFrameworkError, or HarnessError if it cannot even be imported."""
    framework_version(framework)
    environment = {**os.environ, **entry_of(framework).process_variables, "PYTHONPATH": package_path()}
    try:
        child = subprocess.run(
            module_command("probe", framework),
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return _parse(child.stdout)
    except subprocess.TimeoutExpired:
        raise HarnessError(f"{framework} did not answer within {TIMEOUT_S:.0f} s when asked for devices") from None
    except (ValueError, KeyError, TypeError, IndexError):
        last = next((line for line in reversed(child.stderr.splitlines()) if line.strip()), "no message")
        raise HarnessError(
            f"{framework} is installed but does not work: {last.strip()}", tip=f"try: python -c 'import {framework}'"
        ) from None


def _parse(output: str) -> Found:
    """The document is the last line: a framework may have printed before it."""
    content = json.loads(output.strip().splitlines()[-1])
    return Found(**{**content, "notes": tuple(content["notes"])})


def main(framework: str) -> None:
    """Print what the framework finds as one line of JSON."""
    print(json.dumps(asdict(load_backend(framework).find())))


if __name__ == "__main__":
    main(sys.argv[1])
