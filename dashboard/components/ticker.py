"""A clock for pages that move on by themselves: ticks one at a time, and none while the page is being drawn."""

from __future__ import annotations

from collections.abc import Callable

from dashboard.components import clicked, mounted

JS = """
const STEP = 50, QUIET = 200;  // looks every so often; ticks when nothing was being drawn for so long
const HOLD = 1500;  // after a click or key: until its drawing has begun, or so long where it changes nothing
const PATIENCE = 5000;  // of a tick without an answer: then another
let touched = -HOLD, answered = true, drawing = 0;
for (const kind of ["pointerdown", "keydown"])
    document.addEventListener(kind, () => { touched = performance.now(); answered = false; }, true);

// A tick sent along with a click would bring the server the widgets and the URL from before the click.
function free(now) {
    const app = document.querySelector("[data-testid=stApp]");
    if (!["notRunning", undefined].includes(app?.dataset.testScriptState)) [drawing, answered] = [now, true];
    return now - drawing >= QUIET && (answered || now - touched >= HOLD);
}

export default function ({ data, parentElement, setTriggerValue }) {
    clearInterval(parentElement.ticking);
    let due = performance.now() + data.wait;
    parentElement.ticking = setInterval(() => {
        const now = performance.now();
        if (!free(now) || now < due) return;
        due = now + PATIENCE;
        setTriggerValue("clicked", data.at);
    }, STEP);
    return () => clearInterval(parentElement.ticking);
}
"""


def tick(at: int, seconds: float, key: str, act: Callable[[int], None]) -> None:
    """Call act(at) once, `seconds` after it was drawn. Drawn again with another `at`, it ticks again."""
    render = mounted("ticker", "<span></span>", "", JS)
    act_on = clicked(key, lambda value: act(int(value)))
    render(key=key, data={"at": at, "wait": 1000 * seconds}, height=1, on_clicked_change=act_on)
