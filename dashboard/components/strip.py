"""A running text whose tokens can be clicked, each on the colour of its value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from dashboard.components import clicked, mounted

CSS = """
.strip { font: .86rem/1.9 'Source Code Pro', 'DejaVu Sans Mono', Menlo, Consolas, monospace; padding: 10px 12px;
    border: 1px solid rgba(128,128,128,.3); border-radius: 8px; overflow-y: auto; overflow-wrap: anywhere;
    color: var(--st-text-color); white-space: pre-wrap }
.token { border: 0; margin: 0; padding: 1px 0; font: inherit; color: inherit; background: none; border-radius: 3px;
    cursor: pointer; box-shadow: inset 0 -1px 0 rgba(128,128,128,.35); white-space: pre-wrap; text-align: left }
.token:hover { outline: 2px solid rgba(128,128,128,.7) }
.token:focus-visible, .token.picked { outline: 2px solid #ff4b4b; outline-offset: 1px; position: relative;
    z-index: 1 }
.token.still { cursor: default }
.token.marked { box-shadow: inset 0 -3px 0 rgb(230,140,0) }
"""
JS = """
export default function ({ data, parentElement, setTriggerValue }) {
    const box = parentElement.querySelector(".strip");
    box.style.maxHeight = data.height + "px";
    const tokens = data.tokens.map((token) => {
        const item = document.createElement("button");
        item.type = "button";
        item.className = "token" + (token.picked ? " picked" : "") + (token.marked ? " marked" : "") +
            (token.still ? " still" : "");
        item.textContent = token.text;
        item.title = token.title;
        item.dataset.step = token.step;
        if (token.picked) item.setAttribute("aria-current", "true");
        if (token.colour) { item.style.background = token.colour; item.style.color = token.ink; }
        if (!token.still) item.onclick = () => setTriggerValue("clicked", token.step);
        return token.newline ? [item, document.createElement("br")] : [item, document.createElement("wbr")];
    });
    box.replaceChildren(...tokens.flat());
    const picked = box.querySelector(".picked");
    if (picked) box.scrollTop = picked.offsetTop - box.offsetTop - box.clientHeight / 2;
}
"""


@dataclass(frozen=True)
class Token:
    """One token of the strip; `text` as `tokens.show` gives it. A `still` one cannot be clicked."""

    step: int
    text: str
    title: str
    colour: str = ""
    ink: str = ""
    picked: bool = False
    marked: bool = False
    still: bool = False
    newline: bool = False


def strip(shown: Sequence[Token], key: str, on_click: Callable[[int], None], height: int = 220) -> None:
    """The tokens as running text; `on_click(step)` is called for the one clicked."""
    render = mounted("strip", '<div class="strip"></div>', CSS, JS)
    data = {"tokens": [asdict(token) for token in shown], "height": height}
    render(key=key, data=data, on_clicked_change=clicked(key, lambda step: on_click(int(step))))
