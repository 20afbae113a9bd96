"""How far a run is: counted here, written to status.json by a thread of its own whatever the model is doing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recorder.alignment import Key
from recorder.rundir import now, this_process, write_json

INTERVAL = 0.5

Watch = Callable[[dict[str, Any]], None]


class Progress:
    """Counts documents and writes `status.json` every half second, from `start` to `stop`."""

    def __init__(self, path: Path, watch: Watch | None = None) -> None:
        self._path, self._watch = path / "status.json", watch
        self._writer = this_process()
        self._state, self._message = "starting", ""
        self.begun = False
        """The harness has built its requests and asked the first of them."""
        self._started = now()
        self._docs_total: int | None = None
        self._requests_done = self._docs_done = self._replayed = 0
        self._left: Counter[tuple[str, int]] = Counter()
        self._since: float | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._write()
        self._thread.start()

    def state(self, name: str, message: str = "") -> None:
        """Say what the run is doing now; written at once."""
        self._state, self._message = name, message
        if name == "running":
            self._since = time.monotonic()
        self._write()

    def expect(self, documents: int) -> None:
        self._docs_total = documents

    def asked(self, computed: list[Key], replayed: list[Key]) -> None:
        """The harness asks for these now; a document is done when none of its computed requests is left."""
        self.begun = True
        self._left.update((key.task, key.doc_id) for key in computed)
        from_disk = {(key.task, key.doc_id) for key in replayed} - set(self._left)
        self._replayed += len(from_disk)
        self._docs_done += len(from_disk)

    def answered(self, key: Key) -> None:
        self._requests_done += 1
        document = (key.task, key.doc_id)
        self._left[document] -= 1
        if self._left[document] == 0:
            self._docs_done += 1

    def snapshot(self) -> dict[str, Any]:
        """What status.json holds. `rate` is documents a second of this attempt, `seconds_left` at that rate."""
        computed = self._docs_done - self._replayed
        seconds = time.monotonic() - self._since if self._since is not None else 0.0
        rate = computed / seconds if seconds > 0 and computed > 0 else None
        left = max(0, self._docs_total - self._docs_done) if self._docs_total is not None else None
        return {
            "state": self._state,
            "message": self._message,
            "heartbeat": now(),
            "started": self._started,
            "writer": self._writer,
            "progress": {
                "docs_done": self._docs_done,
                "docs_total": self._docs_total,
                "requests_done": self._requests_done,
                "rate": rate,
                "seconds_left": left / rate if rate and left is not None else None,
            },
        }

    def stop(self, state: str, message: str = "") -> None:
        """Write the last word."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._state, self._message = state, message
        self._write()

    def _beat(self) -> None:
        while not self._stopping.wait(INTERVAL):
            self._write()

    def _write(self) -> None:
        with self._lock:
            found = self.snapshot()
            with contextlib.suppress(OSError):  # a full disk must not end the run by its heartbeat; commits will say so
                write_json(self._path, found, durable=False)
            if self._watch is not None:
                self._watch(found)
