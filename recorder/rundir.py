"""One run on disk: names, JSON files, state, and the Parquet files a reader may open.

<root>/<run_id>/run.json       what the run is
                status.json    how far it is, and who writes it
                parts/<shard>-<seq>/<table>.parquet    one commit = one directory
                tables/<table>.parquet                 after finish: every part merged and sorted
                results.json   lm-eval's results, written last: without it the run is not finished
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from recorder.errors import LayerscopeError
from recorder.schema import FORMAT

HEARTBEAT_LIMIT = 60.0
"""Seconds after which a silent run on another machine counts as lost."""

ALIVE = frozenset({"starting", "loading", "running", "finishing"})
RUN_ID = re.compile(r"\d{8}t\d{6}z-[0-9a-f]{6}")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_run_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dt%H%M%Sz}-{secrets.token_hex(3)}"


def finite(value: Any) -> Any:
    """The same value with NaN and infinities as None: JSON has no word for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, data: Any, *, durable: bool = True) -> None:
    """Write by rename, so that a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            json.dump(finite(data), handle, indent=1, ensure_ascii=True, allow_nan=False, default=str)
            handle.write("\n")
            if durable:
                handle.flush()
                os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def mapping(value: Any) -> dict[str, Any]:
    """The value where it is an object; {} where a file holds something else."""
    return value if isinstance(value, dict) else {}


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file. Raises ValueError where it is not an object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} holds a {type(data).__name__}, not an object")
    return data


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return str(int(psutil.boot_time()))


def this_process() -> dict[str, Any]:
    """Who writes: enough to tell a living writer from a dead one whose pid was given to another process."""
    return {
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "pid": os.getpid(),
        "pid_started": psutil.Process().create_time(),
    }


def process_lives(writer: dict[str, Any]) -> bool | None:
    """Whether the writing process still runs; None where this machine cannot know."""
    if writer.get("host") != socket.gethostname():
        return None
    if writer.get("boot_id") != boot_id():
        return False
    try:
        process = psutil.Process(int(writer["pid"]))
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - writer["pid_started"]) < 2.0
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False


@dataclass(frozen=True)
class Run:
    """A run to read. Never raises for what lies on disk: `problem` says what is wrong with it."""

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def run_id(self) -> str:
        return self.path.name

    @cached_property
    def status(self) -> dict[str, Any]:
        try:
            return read_json(self.path / "status.json") or {}
        except (OSError, ValueError):
            return {}

    @property
    def finished(self) -> bool:
        return (self.path / "results.json").is_file()

    @cached_property
    def results(self) -> dict[str, Any]:
        try:
            return read_json(self.path / "results.json") or {}
        except (OSError, ValueError):
            return {}

    @property
    def state(self) -> str:
        """broken, newer, complete, lost, or what the writer last said."""
        if self.problem:
            return "newer" if "newer version" in self.problem else "broken"
        if self.finished:
            return "complete"
        said = str(self.status.get("state", "lost"))
        return "lost" if said in ALIVE and not self.live else said

    @property
    def live(self) -> bool:
        """A writer is at work: by process on this machine, by heartbeat from another."""
        if self.status.get("state") not in ALIVE:
            return False
        lives = process_lives(mapping(self.status.get("writer")))
        return self.heartbeat_age < HEARTBEAT_LIMIT if lives is None else lives

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the writer last wrote its status."""
        try:
            beat = datetime.fromisoformat(str(self.status["heartbeat"]))
        except (KeyError, ValueError):
            return math.inf
        beat = beat if beat.tzinfo else beat.replace(tzinfo=UTC)
        return (datetime.now(UTC) - beat).total_seconds()

    @property
    def revision(self) -> str:
        """Changes whenever rows may have changed: the key for caches."""
        stamps = []
        for name in ("run.json", "results.json", "parts", "tables"):
            with contextlib.suppress(OSError):
                stamps.append(f"{name}:{(self.path / name).stat().st_mtime_ns}")
        return "|".join(stamps)

    def files(self, table: str) -> list[Path]:
        """Parquet files that hold `table`, in commit order; the merged one where the run is finished."""
        if self.problem:
            return []
        if self.finished:
            merged = self.path / "tables" / f"{table}.parquet"
            return [merged] if merged.is_file() else []
        return [part / f"{table}.parquet" for part in parts(self.path) if (part / f"{table}.parquet").is_file()]

    def size(self) -> int:
        """Bytes on disk."""
        total = 0
        for directory, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.stat(os.path.join(directory, name)).st_size
        return total


def parts(path: Path) -> list[Path]:
    """Committed parts of a run, in order. Directories under a temporary name are not commits."""
    try:
        found = [entry for entry in (path / "parts").iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(found)


def open_run(path: Path) -> Run:
    """Run at `path`; what is broken or newer is said in `problem`."""
    try:
        about = read_json(path / "run.json")
    except (OSError, ValueError) as error:
        return Run(path, problem=f"run.json cannot be read: {error}")
    if about is None:
        return Run(path, problem="there is no run.json")
    version = about.get("format")
    if not isinstance(version, int):
        return Run(path, about, problem="run.json names no format")
    if version > FORMAT:
        return Run(path, about, problem=f"written by a newer version (format {version}; this one reads up to {FORMAT})")
    return Run(path, about, problem=_broken_file(path))


def _broken_file(path: Path) -> str:
    for directory in [path / "tables"] if (path / "results.json").is_file() else parts(path):
        try:
            names = sorted(directory.glob("*.parquet"))
        except OSError as error:
            return f"{directory.name} cannot be read: {error.strerror}"
        if not names:
            return f"{directory.relative_to(path)} holds no tables"
        for name in names:
            if not _whole(name):
                return f"{name.relative_to(path)} is truncated or not Parquet"
    return ""


def _whole(path: Path) -> bool:
    """A Parquet file ends in the length of its footer and a magic word; a truncated one does not."""
    try:
        with open(path, "rb") as handle:
            size = handle.seek(0, os.SEEK_END)
            if size < 12:
                return False
            handle.seek(size - 8)
            tail = handle.read(8)
    except OSError:
        return False
    return tail[4:] == b"PAR1" and int.from_bytes(tail[:4], "little") + 12 <= size


def is_run(path: Path) -> bool:
    """A directory that holds a run, or is called like one and held one."""
    marks = ("run.json", "status.json", "results.json")
    if any((path / name).exists() for name in marks):
        return True
    return RUN_ID.fullmatch(path.name) is not None and any(not entry.name.startswith(".") for entry in path.iterdir())


def find_runs(root: Path) -> Iterator[Path]:
    """Directories of runs at or directly under `root`, newest name first."""
    if is_run(root):
        yield root
        return
    try:
        entries = sorted(root.iterdir(), reverse=True)
    except OSError as error:
        raise LayerscopeError(f"{root} is not a readable directory: {error.strerror}") from error
    for entry in entries:
        if not entry.name.startswith(".") and entry.is_dir() and is_run(entry):
            yield entry
