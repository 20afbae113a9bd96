"""What looking costs on a big run and a long list of runs: every page as it is drawn, each in a process of its own.

    python -m tests.benchmarks.pages [--root DIR] [--requests 100000] [--pages lens,runs] [--json FILE]

cold     the first view of a fresh process; libraries are loaded, and the disk cache may be warm
warm     another view of the page in that process: another document, filter or statistic, found in no cache (median)
cached   the first view again
Seconds are those of the page's script, its queries, and putting its messages into bytes; payload is those bytes. The
scan reads the same columns of the page's largest table from end to end, for comparison.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from rich.console import Console
from rich.table import Table
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.local_script_runner import LocalScriptRunner

from dashboard import controls, state, views
from recorder.store import Selection
from recorder.store import open as open_store
from tests.benchmarks import big

WARM, COLD, PAYLOAD = 0.3, 1.5, 1.5e6
"""Goals of any page: seconds, seconds, bytes."""
DOCUMENTS = (17, 4321, 9876, 12000, 777)
"""Documents that both big runs have, whatever their size."""


@dataclass(frozen=True)
class Page:
    """How a page is opened: `first`, then each of `others`. `scan`: (recorded table under it, columns), read whole."""

    view: str
    first: dict[str, Any] = field(default_factory=lambda: ON_BIG)
    others: tuple[dict[str, Any], ...] = ({"run": big.OTHER, "task": big.TASK},)
    scan: tuple[str, str] = ("signals", "step, layer, entropy, target_logprob")
    root: str = "big"
    warm: float = WARM
    cold: float = COLD

    @property
    def name(self) -> str:
        return self.view if self.root == "big" or self.view == "runs" else f"{self.view}, of many runs"


ON_BIG = {"run": big.BIG, "task": big.TASK}
BOTH = {"runs": f"{big.BIG},{big.OTHER}", "task": big.TASK}
SMALL = "20260101t100000z-000000", "20260101t110000z-000001"


def by_document(view: str, *scan: str, **goals: Any) -> Page:
    """A page that shows one document."""
    found = [{**ON_BIG, "doc": doc} for doc in DOCUMENTS]
    return Page(view, found[0], tuple(found[1:]), scan, **goals)  # type: ignore[arg-type]


LENS = "task, doc_id, choice, repeat, step, layer, top_ids, top_tokens, top_probs, entropy, kl_final, target_logprob"
PAGES = (
    Page("runs", {}, ({"q": "mmlu 7b"}, {"q": "sweep 7"}, {"run": SMALL[0]}), root="catalogue", cold=2.0),
    Page("lens", {"run": SMALL[0]}, ({"run": SMALL[1]},), root="catalogue", cold=2.0),
    by_document("lens", "signals", f"{LENS}, target_rank", warm=0.1),
    by_document("steps", "steps", "task, doc_id, choice, repeat, step, text, logprob, entropy, rank, settle_layer"),
    by_document("similarity", "similarity", "task, doc_id, choice, repeat, step, cos"),
    Page("documents", others=tuple({**ON_BIG, **more} for more in ({"q": "tata"}, {"correct": "wrong"}, {"page": 9}))),
    Page("compare", BOTH, ({**BOTH, "runs": f"{big.OTHER},{big.BIG}"},)),
)
"""Every view of the dashboard is opened; one that is not here on one big run, then on the other."""


def find_views() -> dict[str, ModuleType]:
    names = [module.name for module in pkgutil.iter_modules(views.__path__)]
    found = [importlib.import_module(f"{views.__name__}.{name}") for name in names]
    return {view.URL_PATH: view for view in sorted(found, key=lambda view: view.ORDER)}


def find_pages() -> list[Page]:
    """In the order of the dashboard."""
    found = [[page for page in PAGES if page.view == view] or [Page(view)] for view in find_views()]
    return [page for pages in found for page in pages]


@dataclass
class Drawing:
    """One page drawn once: seconds and bytes, and (query, seconds) of each question to the store."""

    seconds: float = 0.0
    payload: int = 0
    queries: list[tuple[str, float]] = field(default_factory=list)

    @property
    def asking(self) -> float:
        return sum(seconds for _, seconds in self.queries)


@contextmanager
def noted(drawing: Drawing) -> Iterator[list[Any]]:
    """Queries inside `with` are noted in `drawing`, messages to the browser in the list."""
    kept, messages = (Selection.sql, Selection.arrow, LocalScriptRunner.forward_msgs), []

    def timed(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any) -> Any:
            started = time.perf_counter()
            try:
                return ask(*args)
            finally:
                drawing.queries.append((_caller(), time.perf_counter() - started))

        return asked

    def sent(runner: LocalScriptRunner) -> Any:
        messages[:] = kept[2](runner)
        return messages

    Selection.sql, Selection.arrow, LocalScriptRunner.forward_msgs = timed(kept[0]), timed(kept[1]), sent  # type: ignore[method-assign]
    try:
        yield messages
    finally:
        Selection.sql, Selection.arrow, LocalScriptRunner.forward_msgs = kept  # type: ignore[method-assign]


def _caller() -> str:
    """'module.function' of the dashboard's query that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("dashboard."):
            return f"{module.rsplit('.', 1)[-1]}.{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


def _run(work):  # type: ignore[no-untyped-def]  # Streamlit runs these lines without the module around them
    work()


def draw(view: ModuleType, params: dict[str, Any]) -> Drawing:
    """The page as a new session opens it. Raises SystemExit where it shows an error."""
    drawing = Drawing()

    def work() -> None:
        started = time.perf_counter()
        with controls.troubles():
            view.render()
        drawing.seconds = time.perf_counter() - started

    test = AppTest.from_function(_run, args=(work,), default_timeout=300)
    for name, value in params.items():
        test.query_params[name] = str(value)
    with noted(drawing) as messages:
        test.run()
    if wrong := [*test.exception, *test.error, *(said for said in test.warning if "This link names" in said.value)]:
        raise SystemExit(f"{view.URL_PATH} {params}: {wrong[0].value}")
    started = time.perf_counter()
    drawing.payload = sum(len(message.SerializeToString()) for message in messages)
    drawing.seconds += time.perf_counter() - started
    return drawing


def _everything() -> None:
    """One of each, so that no page pays for loading a library."""
    st.dataframe(pd.DataFrame({"a": [1]}), on_select="rerun", key="a")
    st.plotly_chart(go.Figure(go.Scatter(x=[1])), on_select="rerun", key="b")
    st.selectbox("c", [1, 2])


def measure(page: Page) -> dict[str, Any]:
    """Figures of one page in this process, which has drawn none before."""
    view = find_views()[page.view]
    AppTest.from_function(_run, args=(_everything,), default_timeout=60).run()
    cold = draw(view, page.first)
    warm = [draw(view, params) for params in page.others]
    cached = draw(view, page.first)
    middle = sorted(warm, key=lambda drawing: drawing.seconds)[len(warm) // 2]
    return {
        "page": page.name,
        **{f"{kind}_s": drawing.seconds for kind, drawing in (("cold", cold), ("warm", middle), ("cached", cached))},
        **{f"{kind}_asking_s": drawing.asking for kind, drawing in (("cold", cold), ("warm", middle))},
        "payload_bytes": max(drawing.payload for drawing in (cold, *warm)),
        "queries": _by_query(cold, middle),
        "scan_s": _scan_seconds(page),
        "goals": {"warm": page.warm, "cold": page.cold, "payload": PAYLOAD},
    }


def _by_query(cold: Drawing, warm: Drawing) -> dict[str, list[float]]:
    """{query: [seconds cold, seconds warm]}, slowest first."""
    names = dict.fromkeys(name for drawing in (cold, warm) for name, _ in drawing.queries)
    sums = {name: [sum(s for n, s in d.queries if n == name) for d in (cold, warm)] for name in names}
    return dict(sorted(sums.items(), key=lambda item: -max(item[1])))


def _scan_seconds(page: Page) -> float:
    """Seconds to read the page's columns of every row of the big run, the faster of two."""
    table, columns = page.scan
    touched = ", ".join(f"bit_xor(hash({column}))" for column in columns.split(", "))
    store = open_store(Path(os.environ[state.ROOTS]).parent / "big").select(big.BIG)
    times = []
    for _ in range(2):
        started = time.perf_counter()
        store.sql(f"SELECT {touched} FROM {table}")
        times.append(time.perf_counter() - started)
    return min(times)


def in_fresh_process(number: int, page: Page, root: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.pages", "--measure", str(number)],
        env={**os.environ, state.ROOTS: str(root / page.root)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"page": page.name, "failed": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(lines[-1])


def report(found: list[dict[str, Any]], console: Console) -> None:
    """Goals that are missed are red."""
    shown = ("page", "cold s", "warm s", "cached s", "queries cold / warm s", "payload MB", "scan s", "warm / scan")
    pages, queries = Table(*shown, title="pages"), Table("page", "query", "cold s", "warm s", title="queries")
    for row in found:
        if "failed" in row:
            pages.add_row(row["page"], f"[red]{row['failed']}")
            continue
        goals = row["goals"]
        pages.add_row(
            row["page"],
            _against(row["cold_s"], goals["cold"]),
            _against(row["warm_s"], goals["warm"]),
            f"{row['cached_s']:.3f}",
            f"{row['cold_asking_s']:.3f} / {row['warm_asking_s']:.3f}",
            _against(row["payload_bytes"] / 1e6, goals["payload"] / 1e6),
            f"{row['scan_s']:.3f}",
            f"{row['warm_s'] / row['scan_s']:.3f}",
        )
        for name, (cold, warm) in row["queries"].items():
            queries.add_row(row["page"], name, f"{cold:.3f}", f"{warm:.3f}")
    console.print(pages, queries)


def _against(value: float, goal: float) -> str:
    return f"[{'green' if value < goal else 'red'}]{value:.3f} {'<' if value < goal else 'not <'} {goal:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=big.CACHE)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--pages", help="URL paths, comma-separated (default: all)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    pages = find_pages()
    if given.measure is not None:
        print(json.dumps(measure(pages[given.measure])))
        return
    big.build(given.root, given.requests, given.requests // 2, given.runs)
    console, found = Console(), []
    for number, page in enumerate(pages):
        if not given.pages or page.view in given.pages.split(","):
            with console.status(f"{page.name} …"):
                found.append(in_fresh_process(number, page, given.root))
    report(found, console)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
