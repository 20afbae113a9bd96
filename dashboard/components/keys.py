"""Keyboard: the keys that a page listens to, while nobody is typing in a field."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dashboard.components import clicked, mounted

JS = """
export default function ({ data, setTriggerValue }) {
    const typing = (element) => element && (element.isContentEditable ||
        /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName) ||
        /^(slider|radio|tab|grid|listbox|combobox|menu|menuitem)$/.test(element.getAttribute("role") || ""));
    const listen = (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
        if (!(event.key in data)) return;
        event.preventDefault();
        setTriggerValue("clicked", event.key);
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
}
"""


def listen(actions: Mapping[str, Callable[[], None]], key: str) -> None:
    """Call actions[name] when that key is pressed: a KeyboardEvent.key, such as 'ArrowLeft' or '['."""
    render = mounted("keys", "<span></span>", "", JS)
    act = clicked(key, lambda name: actions[name]() if name in actions else None)
    render(key=key, data=dict.fromkeys(actions, True), height=1, on_clicked_change=act)
