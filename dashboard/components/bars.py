"""Tokens with their probabilities as bars that can be clicked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from dashboard.components import clicked, mounted

CSS = """
.bars { display: grid; row-gap: 4px; font-size: .86rem; color: var(--st-text-color); font-family: var(--st-font) }
.bar { position: relative; display: flex; gap: 10px; align-items: center; height: 26px; padding: 0 8px; border: 0;
    border-radius: 4px; overflow: hidden; white-space: nowrap; background: rgba(128,128,128,.12); color: inherit;
    font: inherit; text-align: left; cursor: pointer }
.bar:hover, .bar:focus-visible { outline: 2px solid rgba(128,128,128,.7); outline-offset: -2px }
.bar.on { outline: 3px solid; outline-offset: -3px }
.fill { position: absolute; inset: 0 auto 0 0; background: rgba(90,130,200,.35) }
.bar.marked .fill { background: rgba(255,170,0,.45) }
.name { position: relative; flex: 1; overflow: hidden; text-overflow: ellipsis;
    font-family: 'Source Code Pro', 'DejaVu Sans Mono', Menlo, Consolas, monospace }
.note { position: relative; opacity: .7 }
.value { position: relative; min-width: 4em; text-align: right; font-variant-numeric: tabular-nums }
"""
JS = """
export default function ({ data, parentElement, setTriggerValue }) {
    const part = (kind, text) => {
        const made = document.createElement("span");
        made.className = kind;
        made.textContent = text;
        return made;
    };
    parentElement.querySelector(".bars").replaceChildren(...data.map((bar) => {
        const item = document.createElement("button");
        item.type = "button";
        item.className = "bar" + (bar.marked ? " marked" : "") + (bar.frame ? " on" : "");
        item.title = bar.title;
        item.setAttribute("aria-pressed", String(Boolean(bar.frame)));
        item.style.outlineColor = bar.frame;
        const fill = part("fill", "");
        fill.style.width = 100 * bar.share + "%";
        item.append(fill, part("name", bar.text), part("note", bar.note), part("value", bar.value));
        item.onclick = () => setTriggerValue("clicked", bar.token_id);
        return item;
    }));
}
"""


@dataclass(frozen=True)
class Bar:
    """One token; `share` from 0 to 1 is the bar's length, `marked` gives it the target's colour, `frame` is the colour
    around a chosen one."""

    token_id: int
    text: str
    share: float
    value: str
    note: str = ""
    title: str = ""
    marked: bool = False
    frame: str = ""


def bars(shown: Sequence[Bar], key: str, on_click: Callable[[int], None]) -> None:
    """One bar a token; `on_click(token_id)` is called for the one clicked."""
    render = mounted("bars", '<div class="bars"></div>', CSS, JS)
    render(
        key=key,
        data=[asdict(bar) for bar in shown],
        on_clicked_change=clicked(key, lambda token_id: on_click(int(token_id))),
    )
