"""Overview: what a run scored, how its means move over the layers, and what to know before believing them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, exports, pickers, state, tokens
from dashboard.charts import overview as charts
from dashboard.queries import overview as asked
from dashboard.queries import rows
from dashboard.views.overview import making
from recorder.rundir import Run, mapping

TITLE, ICON, ORDER, URL_PATH = "Overview", ":material/monitoring:", 20, "overview"

OPEN = "overview:open"
"""What the last click asked of the next run of the page: (group, settle layer) whose documents to show."""
GRADES = {"all": None, "correct": "right", "incorrect": "wrong"}
"""What the Documents page calls the groups."""
SCORES = ("task", "metric", "arrow", "filter", "value", "stderr", "n", "open")
"""Columns of the scores; a filter that is none everywhere is left out."""
ICONS = {
    "good": ":green[:material/check_circle:]",
    "info": ":blue[:material/info:]",
    "warning": ":orange[:material/warning:]",
}


def render() -> None:
    controls.open_notices()
    run_column, task_column = st.columns([3, 2], vertical_alignment="bottom")
    with run_column:
        run = pickers.pick_run()
    if run is None:
        return
    with task_column:
        task = pickers.pick_task(run)
    _state(run)
    score_column, finding_column = st.columns([3, 2], gap="large")
    with score_column:
        _scores(run)
    with finding_column:
        _findings(run, task)
    if task is not None:
        with controls.troubles():
            _task(run, task)
    making.show(run)
    making.show_command(run)


def _state(run: Run) -> None:
    """What an unfinished run is, and that there is more to come."""
    if run.finished:
        return
    progress = mapping(run.status.get("progress"))
    done, total = progress.get("docs_done"), progress.get("docs_total")
    far = f" {done:,} of {total:,} documents are recorded." if isinstance(done, int) and isinstance(total, int) else ""
    if run.live:
        said = f"This run is in progress ({run.state}).{far} The curves hold what is on disk; reload to see more."
        controls.say(said)
    else:
        message = run.status.get("message")
        why = f": {message}" if message else ""
        said = (
            f"This run ended before it was finished ({run.state}{why}).{far} Below is the command that goes on with it."
        )
        controls.say(said, kind="warning")


def _headed(title: str, help: str) -> Any:
    """A heading; what is drawn inside `with` stands at the other end of its line."""
    line = st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute")
    line.markdown(f"**{title}**", help=help, width="content")
    return line


def _scores(run: Run) -> None:
    found = asked.scores(run.results)
    with _headed("Scores", "As lm-evaluation-harness gives them: its own metrics, filters and standard errors."):
        if len(found):
            exports.offer(f"scores {run.run_id}", [found], "overview_scores")
    if not run.finished:
        controls.say("Not graded yet: the harness scores a run once every document is answered.")
        return
    ungraded = [task for task in _tasks(run) if task not in set(found["task"])]
    if len(found):
        _score_table(run, found)
    if ungraded:
        names = ", ".join(tokens.readable(task, 40) for task in ungraded)
        controls.say(f"Not graded, for the task has no gold answer: {names}.")


def _tasks(run: Run) -> list[str]:
    """Tasks of the harness that the run evaluated, groups left out."""
    listed = run.about.get("tasks")
    return [str(task) for task in listed] if isinstance(listed, list) else []


def _score_table(run: Run, found: pd.DataFrame) -> None:
    links = [_documents_of(run, row) for row in rows(found)]
    shown = found.assign(
        task=[tokens.readable(task, 60) for task in found["task"]],
        arrow=[{"higher": "↑", "lower": "↓"}.get(better, "") for better in found["better"]],
        open=pd.Series(links, dtype=object),
    )
    st.dataframe(
        shown,
        hide_index=True,
        height=min(38 + 35 * len(shown), 38 + 35 * 9),
        placeholder="",
        column_order=[name for name in SCORES if name != "filter" or set(found["filter"]) != {"none"}],
        column_config={
            "task": st.column_config.TextColumn("Task", help="Task or group of the harness", width=150),
            "metric": st.column_config.TextColumn("Metric", width=95),
            "arrow": st.column_config.TextColumn("Better", help="↑ higher is better, ↓ lower is better", width=50),
            "filter": st.column_config.TextColumn("Filter", help="The harness's answer filter", width=70),
            "value": st.column_config.NumberColumn("Value", format="%.4f", width=80),
            "stderr": st.column_config.NumberColumn(
                "Std. error", format="%.4f", help="The harness's own; a single document has none", width=75
            ),
            "n": st.column_config.NumberColumn("Documents", help="Documents that the score is over", width=75),
            "open": st.column_config.LinkColumn(
                "List", help="Opens the list of these documents", display_text=":material/list:", width=40
            ),
        },
    )


def _documents_of(run: Run, row: dict[str, Any]) -> str | None:
    """Address of the list of a task's documents; a group has none of its own."""
    if row["task"] not in _tasks(run):
        return None
    return state.address("documents", run=run.run_id, task=row["task"], filter=row["filter"])


def _findings(run: Run, task: str | None) -> None:
    st.markdown(
        "**Checks**", help="What was proved when the model was loaded, and what was counted when the run ended."
    )
    waiting: list[str] = []
    for finding in asked.findings(run):
        waiting.append(f"{ICONS[finding.kind]} {tokens.markdown(finding.text)}")
        if finding.about == "truncated" and task is not None:
            st.markdown("\n\n".join(waiting))
            waiting.clear()
            _truncated(run, task)
    st.markdown("\n\n".join(waiting))


def _truncated(run: Run, task: str) -> None:
    count = next(row["truncated"] for row in rows(state.ask(asked.groups, run, task)) if row["group"] == "all")
    label = f"{_count(count, 'such document')} of {tokens.markdown(tokens.readable(task, 40))}"
    state.link("documents", label, icon=":material/list:", run=run.run_id, task=task, truncated="yes")


def _task(run: Run, task: str) -> None:
    """The curves of a task, and where its steps settled."""
    st.divider()
    graded = state.ask(asked.filters, run, task)["filter"].tolist()
    found = rows(state.ask(asked.groups, run, task))
    filter = graded[0] if len(graded) > 1 else None
    _groups(run, task, found, filter)
    summary = state.ask(asked.curves, run, task)
    if summary.empty:
        _no_curves(run)
        return
    names = [name for name in charts.GROUPS if name in set(summary["group"])]
    counts = {row["group"]: row for row in found}
    groups = [charts.Group(name, _label(name, counts.get(name)), summary[summary["group"] == name]) for name in names]
    _curves(run, task, groups, summary)
    _settled(run, task, groups, summary, filter)


def _groups(run: Run, task: str, found: list[dict[str, Any]], filter: str | None) -> None:
    """Links to the documents of each group."""
    by = f", graded by the filter {tokens.markdown(filter)}" if filter else ""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown("**Documents**", help="Each opens the list of the documents behind it.", width="content")
        for row in found:
            state.link(
                "documents",
                f"{row['group'].capitalize()}: {_count(row['documents'], 'document')}, {_count(row['steps'], 'step')}",
                icon=":material/list:",
                help="Steps scored or generated: of the gold choice, where there are choices" + by,
                run=run.run_id,
                task=task,
                filter=filter,
                correct=GRADES[row["group"]],
            )
    empty = found[0]["documents"] - found[0]["with_steps"]
    if empty:
        st.caption(f"Without a step, and so in no curve: {_count(empty, 'document')}.")


def _count(number: int | None, what: str) -> str:
    return f"{number or 0:,} {what}{'s' if number != 1 else ''}"


def _label(name: str, row: dict[str, Any] | None) -> str:
    return f"{name.capitalize()}: {_count(row['with_steps'], 'document')}" if row else name.capitalize()


def _no_curves(run: Run) -> None:
    signals = run.about.get("signals") or mapping(run.about.get("config")).get("signals") or []
    if isinstance(signals, list) and "logit_lens" in signals:
        controls.say("There is nothing to average: no step of this task is on disk yet, or none was scored.")
    else:
        controls.say("This run recorded no layers. Record it again with --signals logit_lens to see curves over them.")


def _curves(run: Run, task: str, groups: list[charts.Group], summary: pd.DataFrame) -> None:
    band = controls.pick("band", "band", list(charts.BANDS), "quartiles")
    figure = charts.panels(groups, charts.BANDS[band])
    meanings = "  \n".join(f"**{panel.title}** {panel.meaning}." for panel in charts.PANELS)
    line = _headed("Means over the layers", f"Mean over the steps of each group, by layer.  \n{meanings}")
    with line.container(horizontal=True, vertical_alignment="center", width="content"):
        st.segmented_control(
            "Band",
            list(charts.BANDS),
            format_func=lambda name: charts.BANDS[name].label,
            required=True,
            label_visibility="collapsed",
            help="  \n".join(f"**{each.label}**: {each.meaning}." for each in charts.BANDS.values()),
            **controls.bound("band", band),
        )
        exports.offer(f"curves {run.run_id} {task}", [summary], "overview_curves", figure)
    exports.chart(figure, "overview_curves")
    notes = [f"Shaded: {charts.BANDS[band].meaning}."] if band != "none" else []
    lost = int(summary[summary["group"] == "all"]["n_nonfinite"].sum())
    if lost:
        notes.append(f"{lost:,} entropies of a step and layer are not finite: gaps, left out of the means.")
    if band == "ci" and any(int(group.summary["n_docs"].max()) < 2 for group in groups):
        notes.append("A group of one document has no interval.")
    notes.append("Layer 0 is the embedding of the input token: where the head is tied to it, it decodes to that token.")
    st.caption(tokens.markdown(" ".join(notes)))


def _settled(run: Run, task: str, groups: list[charts.Group], summary: pd.DataFrame, filter: str | None) -> None:
    if (picked := st.session_state.pop(OPEN, None)) is not None:
        name, layer = picked
        where = {"run": run.run_id, "task": task, "filter": filter, "correct": GRADES[name]}
        # Streamlit's way back leads over this page under that page's parameters: the band is kept for it.
        state.open_page("documents", **where, settle=f"{layer}-{layer}", band=state.read("band"))
    shown = [group for group in groups if group.name != "all"] or groups
    figure = charts.settled(shown)
    with _headed(
        "Where steps settled",
        "The settle layer of a step is the first layer from which its top-1 token stays the final one.",
    ):
        exports.offer(f"settle layers {run.run_id} {task}", [summary], "overview_settled", figure)
    exports.chart(figure, "overview_settled", on_click=lambda found: st.session_state.update({OPEN: tuple(found)}))
    st.caption(
        "Click a bar for the documents that have such a step. A document of several steps is behind several bars."
    )
