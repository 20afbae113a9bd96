"""Install everything on a fresh machine and run the tests. Needs only Python 3.11 or newer.

    python3 -m tests [--set-up-only] [pytest arguments]

Makes .venv, installs torch's CPU build first (LAYERSCOPE_TORCH holds other pip arguments for it), then Layerscope with
all its extras, and Debian's chromium where a browser is missing and this user may install it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts" if os.name == "nt" else "bin") / "python"
TORCH = os.environ.get("LAYERSCOPE_TORCH", "torch==2.13.0")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def run(*command: str | Path) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True)


def installed(module: str) -> bool:
    found = subprocess.run([str(PYTHON), "-c", f"import {module}"], stderr=subprocess.DEVNULL, check=False)
    return found.returncode == 0


def set_up() -> None:
    if not PYTHON.exists():
        venv.create(VENV, with_pip=True)
    if not installed("torch"):
        run(PYTHON, "-m", "pip", "install", "--quiet", *TORCH.split())
    run(PYTHON, "-m", "pip", "install", "--quiet", "--editable", ".[record,test]")
    if not any(shutil.which(name) for name in BROWSERS):
        install_browser()


def install_browser() -> None:
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "chromium", "fonts-noto-core", "fonts-noto-cjk")
    else:
        print("no Chromium here: the browser tests will fail until one is installed (Debian: apt install chromium)")


def main() -> None:
    arguments = sys.argv[1:]
    set_up()
    if "--set-up-only" in arguments:
        return
    workers = ["-n", str(min(os.cpu_count() or 1, 4)), "--dist", "loadgroup"]
    raise SystemExit(
        subprocess.run([str(PYTHON), "-m", "pytest", *workers, *arguments], cwd=ROOT, check=False).returncode
    )


if __name__ == "__main__":
    main()
