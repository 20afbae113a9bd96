"""A process that has imported torch and lm_eval, and forks one `layerscope` an order: seconds saved on every attempt.

Orders come as JSON lines on stdin, answers go as JSON lines to stdout. No torch operation runs here, so that a
forked child starts its threads itself, as a fresh process does.

    {"do": "start", "argv": [...], "stderr": path, "stdout": path}      -> {"pid": n}
    {"do": "attempt", ..., "kill": null or {"seconds": s, "root": path, "state": name, "commits": n, "beyond": m}}
                                                                        -> {"code": n or null, "seconds": s}
    {"do": "wait", "pid": n, "seconds": limit}                          -> {"code": n}

`attempt` kills with SIGKILL `seconds` after the child began; or after it first said `state` in its status.json under
`root` ("begun": as soon as there is a directory); or after it had made `commits` parts beyond the first `beyond`. The
code is then -9.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from recorder.cli import main

WARM = (
    "recorder.evaluation",
    "recorder.kernel",
    "datasets.packaged_modules.json.json",
    "transformers.generation.utils",
    "transformers.models.llama.modeling_llama",
)
"""What a recording imports, imported once."""


def start(argv: list[str], stdout: str, stderr: str) -> int:
    """Fork a child that is `layerscope ARGV`; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    for descriptor, name in ((1, stdout), (2, stderr)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["layerscope", *argv]
    code = 70
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if code == 70:
            sys.excepthook(*sys.exc_info())  # what a traceback at the end of a process would print
        os._exit(code)


def ended(pid: int, limit: float) -> int | None:
    """Exit code of the child once it has ended, -9 after SIGKILL; None where it runs on past `limit` seconds."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def says(root: Path, state: str, since: float) -> bool:
    """Whether a run under `root` has said `state` after the wall-clock time `since`."""
    for path in root.glob("*/status.json"):
        try:
            if path.stat().st_mtime >= since and json.loads(path.read_text())["state"] == state:
                return True
        except FileNotFoundError:
            continue
    return False


def reached(kill: dict[str, Any], since: float) -> bool:
    root = Path(kill["root"])
    if kill.get("state") == "begun":
        return any(root.glob("*/"))
    if "commits" in kill:
        return sum(1 for _ in root.glob("*/parts/[0-9]*")) >= kill["beyond"] + kill["commits"]
    return "state" not in kill or says(root, kill["state"], since)


def attempt(order: dict[str, Any]) -> dict[str, Any]:
    began, wall = time.monotonic(), time.time()
    pid = start(order["argv"], order["stdout"], order["stderr"])
    kill = order.get("kill")
    code = None
    if kill is None:
        code = ended(pid, 120)
    else:
        while not reached(kill, wall):
            code = ended(pid, 0.003)
            if code is not None:
                break
        if code is None:
            code = ended(pid, kill["seconds"])
    if code is None:
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"code": code, "seconds": time.monotonic() - began}


def serve() -> None:
    for name in WARM:
        importlib.import_module(name)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "start":
            answer: dict[str, Any] = {"pid": start(order["argv"], order["stdout"], order["stderr"])}
        elif order["do"] == "wait":
            answer = {"code": ended(order["pid"], order["seconds"])}
        else:
            answer = attempt(order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
