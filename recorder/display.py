"""What the command line shows: progress, tables, and the dashboard's address."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from recorder.errors import LayerscopeError
from recorder.schema import Table


class Bar:
    """The progress of a recording on a terminal: documents done, rate, time left. `None` shows nothing."""

    def __init__(self, console: Console | None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("documents"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[speed]}"),
            console=console,
            disable=console is None,
        )
        self._task = self._progress.add_task("starting", total=None, speed="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, status: dict[str, Any]) -> None:
        """Takes what status.json holds."""
        p = status["progress"]
        speed = ""
        if p["rate"]:
            speed = f"{p['rate']:.2f}/s"
            if p["seconds_left"]:
                speed += f", {_duration(p['seconds_left'])} left"
        self._progress.update(
            self._task, description=status["state"], completed=p["docs_done"], total=p["docs_total"], speed=speed
        )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def print_table(rows: pd.DataFrame, form: str) -> None:
    """A query's rows as a table for eyes, CSV or JSON for programs."""
    if form == "csv":
        sys.stdout.write(rows.to_csv(index=False))
        return
    if form == "json":
        plain = json.loads(rows.to_json(orient="records", date_format="iso", double_precision=15))
        sys.stdout.write(json.dumps(plain, ensure_ascii=False) + "\n")  # pandas alone writes / as \\/
        return
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False, markup=False, emoji=False)
    table = RichTable(*[str(name) for name in rows.columns], box=None, pad_edge=False)
    for row in rows.itertuples(index=False):
        table.add_row(*["" if _missing(value) else str(value) for value in row])
    console.print(table)
    console.print(f"{len(rows)} rows")


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA


def print_schema(tables: Iterable[Table], form: str) -> None:
    """The declarations that write the files, as text or JSON."""
    if form == "json":
        found = [
            {
                "table": table.name,
                "meaning": table.meaning,
                "key": table.key,
                "columns": [
                    {"name": c.name, "type": str(c.type), "unit": c.unit, "meaning": c.meaning} for c in table.columns
                ],
            }
            for table in tables
        ]
        sys.stdout.write(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        return
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False, emoji=False)
    for table in tables:
        console.print(f"{table.name}: {table.meaning}\nkey: {', '.join(table.key)}", style="bold")
        grid = RichTable("column", "type", "unit", "meaning", box=None, pad_edge=False)
        for c in table.columns:
            grid.add_row(c.name, _type_name(str(c.type)), c.unit, c.meaning)
        console.print(grid)
        console.print()


def _type_name(name: str) -> str:
    name = name.replace("dictionary<values=string, indices=int32, ordered=0>", "string")
    return name.replace("list<element: ", "list<").replace("list<item: ", "list<")


def start_dashboard(app: Path, roots: Iterable[Path], host: str, port: int, browser: bool) -> None:
    """Become Streamlit, in this terminal until Ctrl-C, on a free port from `port` on. Does not return."""
    found = [root.resolve() for root in roots]
    for root in found:
        if not root.is_dir():
            raise LayerscopeError(f"{root} is not a directory; name a directory of runs, or record one first")
    port = _free_port(host, port)
    environment = {**os.environ, "LAYERSCOPE_ROOTS": os.pathsep.join(map(str, found))}
    flags = {
        "server.address": host,
        "server.port": port,
        "server.headless": "false" if browser else "true",
        "server.fileWatcherType": "none",
        "browser.serverAddress": host,
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
    }
    command = [sys.executable, "-m", "streamlit", "run", str(app)]
    command += [f"--{name}={value}" for name, value in flags.items()]
    print(f"Layerscope is at http://{host}:{port} (stop it with Ctrl-C)", flush=True)
    os.execve(command[0], command, environment)  # this process becomes the server: no child is left behind


def _free_port(host: str, port: int) -> int:
    for candidate in range(port, port + 50):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, candidate))
            except OSError as error:
                if error.errno not in (98, 48):
                    raise LayerscopeError(f"cannot listen on {host}:{candidate}: {error.strerror}") from error
                continue
        return candidate
    raise LayerscopeError(f"no free port on {host} from {port} to {port + 49}; name another with --port")
