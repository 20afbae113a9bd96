"""Which runs are compared, on which task and under which filter: all of it in the URL."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard import controls, pickers, state, tokens
from dashboard.charts import compared
from dashboard.charts.compared import LETTERS
from dashboard.queries import compare, rows
from dashboard.views.compare.comparison import Comparison, distinct, run_name
from recorder.rundir import Run, mapping

MOST = len(LETTERS)
OFFERED = 8
"""Runs, or pairs of runs, that the page proposes."""
NEWEST = 200
"""Runs among which pairs are looked for."""


def choose() -> tuple[Run, ...]:
    """The runs that the URL names, fewer than two where there is nothing to compare yet; the picker shows them."""
    there = {run.run_id: run for run in state.store().runs}
    readable = {run_id: run for run_id, run in there.items() if not run.problem}
    chosen = _asked(there)
    labels = dict(zip(readable, distinct(list(readable.values())), strict=True))
    st.session_state["url:runs"] = list(chosen)
    st.multiselect(
        "Runs, the first of them the baseline",
        list(readable),
        format_func=lambda run_id: tokens.readable(labels[run_id], 44),
        max_selections=MOST,
        placeholder="Choose two to four runs",
        help="A is the baseline: every other run is compared with it. Runs are lettered in the order they are chosen.",
        key="url:runs",
        on_change=lambda: _write(st.session_state["url:runs"], chosen),
    )
    return tuple(readable[run_id] for run_id in chosen)


def _asked(there: dict[str, Run]) -> list[str]:
    """Ids in the URL that can be compared; what is wrong with the others is said."""
    asked = [part for part in (state.read("runs") or state.read("run")).split(",") if part]
    found = list(dict.fromkeys(asked))
    whole = [run_id for run_id in found if run_id in there and not there[run_id].problem]
    with st.session_state.get("notices") or st.container():
        if len(found) < len(asked):
            controls.say(
                "This link names a run twice: a run has nothing to be compared with in itself.", kind="warning"
            )
        if gone := [run_id for run_id in found if run_id not in there]:
            _say_gone(gone)
        for run_id in found:
            if run_id in there and there[run_id].problem:
                controls.say(f"The run {run_id} cannot be compared: {there[run_id].problem}.", kind="error")
        if len(whole) > MOST:
            controls.say(f"This link names {len(whole):,} runs: the first {MOST} are compared.", kind="warning")
    return whole[:MOST]


def _say_gone(gone: list[str]) -> None:
    named = ", ".join(tokens.readable(run_id, 40) for run_id in gone[:3])
    more = f" and {len(gone) - 3:,} more" if len(gone) > 3 else ""
    what = "runs" if len(gone) > 1 else "run"
    controls.say(f"This link names the {what} {named}{more}, not to be found here: left out.", kind="warning")


def _write(ids: Sequence[str], before: Sequence[str]) -> None:
    """To the URL. Documents are numbered by the first run: with another one, the one looked at is forgotten."""
    forget = pickers.OF_TASK if list(ids[:1]) != list(before[:1]) else ()
    state.write(**dict.fromkeys((*forget, "vs")), runs=",".join(ids), run=None)


def baselines(comparison: Comparison) -> None:
    """Letters and names of the runs, each with the button that makes it the baseline."""
    ids = comparison.ids
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="compared"):
        for at, name in enumerate(comparison.names):
            with st.container(horizontal=True, vertical_alignment="center", gap="small", width="content"):
                st.html(compared.name(at, name, 40), width="content")
                if at == 0:
                    st.caption("baseline", width="content")
                    continue
                st.button(
                    "Swap A and B" if len(ids) == 2 else "Make baseline",
                    key=f"baseline:{at}",
                    icon=":material/swap_horiz:",
                    type="tertiary",
                    help="Differences are those to the baseline.",
                    on_click=_write,
                    args=([ids[at], *(run_id for run_id in ids if run_id != ids[at])], ids),
                )


def offer(chosen: tuple[Run, ...]) -> None:
    """Fewer than two runs: those that can be compared, as links."""
    readable = [run for run in state.store().runs if not run.problem]
    if len(readable) < 2:
        where = ", ".join(state.roots())
        controls.say(f"To compare takes two runs; there {_are(len(readable))} that can be read under {where}.")
        return
    found = _partners(chosen[0], readable) if chosen else _neighbours(readable)
    what = f"share a task with {run_name(chosen[0])}" if chosen else "share a task"
    if not found:
        controls.say(f"No two runs here {what}." if not chosen else f"No other run here would {what}.")
        return
    st.markdown(f"**Runs that {tokens.markdown(what)}**")
    with st.container(gap="xxsmall"):
        for one, other, tasks in found[:OFFERED]:
            label = run_name(other) if chosen else f"{run_name(one)} and {run_name(other)}"
            st.button(  # a link to the page that is open would leave its address as it was
                tokens.markdown(f"{tokens.readable(label, 100)}, on {tokens.readable(', '.join(tasks), 60)}"),
                key=f"offer:{one.run_id},{other.run_id}",
                icon=":material/compare_arrows:",
                type="tertiary",
                help="Compare them",
                on_click=_write,
                args=((one.run_id, other.run_id), [run.run_id for run in chosen]),
            )
    if len(found) > OFFERED:
        st.caption(f"{OFFERED} of {len(found):,}; the list above holds all runs.")


def _are(count: int) -> str:
    return "is none" if count == 0 else "is one"


def _tasks(run: Run) -> set[str]:
    return set(run.about.get("tasks") or mapping(run.about.get("config")).get("tasks") or ())


def _partners(one: Run, readable: list[Run]) -> list[tuple[Run, Run, list[str]]]:
    found = [(one, other, sorted(_tasks(one) & _tasks(other))) for other in readable if other.run_id != one.run_id]
    return [pair for pair in found if pair[2]]


def _neighbours(readable: list[Run]) -> list[tuple[Run, Run, list[str]]]:
    """Each run with the next older one that shares a task."""
    newest = sorted(readable, key=lambda run: run.run_id, reverse=True)[:NEWEST]
    found = []
    for at, run in enumerate(newest):
        older = next((other for other in newest[at + 1 :] if _tasks(run) & _tasks(other)), None)
        if older is not None:
            found.append((older, run, sorted(_tasks(run) & _tasks(older))))
    return found


def pick_task(runs: tuple[Run, ...]) -> str | None:
    """A task that every run has recorded; None where there is none."""
    frame = state.ask_runs(compare.tasks, runs)
    counts: dict[str, dict[str, int]] = {}
    for row in rows(frame):
        counts.setdefault(row["task"], {})[row["run_id"]] = row["documents"]
    shared = [task for task, held in counts.items() if len(held) == len(runs)]
    if not shared:
        return None
    largest = max(shared, key=lambda task: min(counts[task].values()))
    chosen = controls.pick("task", "task", shared, largest)

    def label(task: str) -> str:
        held = {counts[task][run.run_id] for run in runs}
        told = " and ".join(f"{count:,}" for count in sorted(held, reverse=True))
        return f"{tokens.readable(task, 50)} · {told} documents"

    st.selectbox(
        "Task",
        shared,
        format_func=label,
        help="Tasks that every run has recorded, with the documents that each holds.",
        **controls.bound("task", chosen, (*pickers.OF_TASK, "filter", "metric", "pair")),
    )
    return chosen


def say_tasks(runs: tuple[Run, ...]) -> None:
    """Why there is nothing to compare: which tasks each run has."""
    frame = state.ask_runs(compare.tasks, runs)
    controls.say("These runs share no task, so there is nothing to compare. What each has recorded:")
    for at, run in enumerate(runs):
        held = frame.loc[frame["run_id"] == run.run_id, "task"].tolist()
        told = ", ".join(tokens.readable(task, 50) for task in held[:20]) or f"nothing yet ({run.state})"
        more = f" and {len(held) - 20:,} more" if len(held) > 20 else ""
        st.html(compared.sentence([compared.name(at, run_name(run)), compared.plain(f": {told}{more}")]))


def pick_filter(runs: tuple[Run, ...], task: str) -> str | None:
    """A filter under which every run was graded; a control only where there are several. None where there is none."""
    frame = state.ask_runs(compare.filters, runs, task)
    counts = frame.groupby("filter")["run_id"].nunique()
    shared = sorted(counts.index[counts == len(runs)])
    if not shared:
        return None
    chosen = controls.pick("filter", "filter", shared, shared[0])
    if len(shared) > 1:
        st.selectbox(
            "Filter",
            shared,
            help="The harness grades an answer once for each of its filters.",
            **controls.bound("filter", chosen, ("metric", "pair")),
        )
    return chosen
