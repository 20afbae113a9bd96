"""A chart on the page as a PNG or SVG file, drawn by the chart itself in the browser."""

from __future__ import annotations

from dashboard.components import mounted

CSS = """
.row { display: flex; gap: 8px }
button { flex: 1; padding: 6px 12px; border-radius: var(--st-button-radius, 8px); font: inherit; cursor: pointer;
    border: 1px solid var(--st-border-color, rgba(128,128,128,.4)); color: var(--st-text-color);
    background: var(--st-background-color); font-family: var(--st-font); font-size: .9rem }
button:hover { border-color: var(--st-primary-color); color: var(--st-primary-color) }
"""
HTML = """<div class="row"><button type="button" data-kind="png" title="Picture of the chart, at twice its size">PNG
</button><button type="button" data-kind="svg" title="Drawing of the chart, sharp at any size">SVG</button></div>"""
JS = """
export default function ({ data, parentElement }) {
    // The chart saves by clicking a link of its own; seen by the page, that click would close the popover around us.
    const hide = (event) => event.target.download === undefined || event.stopPropagation();
    for (const button of parentElement.querySelectorAll("button")) {
        button.onclick = () => {
            const plot = document.querySelector(".st-key-" + CSS.escape(data.chart) + " .js-plotly-plot");
            const camera = plot && plot.querySelector('.modebar-btn[data-title^="Download plot"]');
            if (!camera) { button.textContent = "the chart is not drawn"; return; }
            Object.assign(plot._context.toImageButtonOptions,
                { format: button.dataset.kind, filename: data.name, scale: button.dataset.kind === "png" ? 2 : 1 });
            const paper = plot.layout.paper_bgcolor;  // clear on the page, whose own colour the picture is given
            plot.layout.paper_bgcolor = getComputedStyle(document.querySelector(".stApp")).backgroundColor;
            window.addEventListener("click", hide, { capture: true });
            setTimeout(() => window.removeEventListener("click", hide, { capture: true }), 5000);
            camera.dispatchEvent(new MouseEvent("click", { bubbles: false }));
            plot.layout.paper_bgcolor = paper;
        };
    }
}
"""


def picture(chart: str, name: str, key: str) -> None:
    """Buttons that save the chart inside the st.container of key `chart` as `name`.png or .svg."""
    mounted("picture", HTML, CSS, JS)(key=key, data={"chart": chart, "name": name})
