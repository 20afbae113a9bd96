"""Page configuration and navigation over the views found in `dashboard/views`."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import streamlit as st

from dashboard import controls, state, views

# Comments, not docstrings: Streamlit draws the strings of its main script. It fetches a named icon from the internet,
# so the tab's is drawn here; and it leaves room for a banner above every page.
TAB = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#d33" stroke-width="2">
<path d="m12 3 9 5-9 5-9-5zM3 12l9 5 9-5M3 16l9 5 9-5"/></svg>"""
LOOK = """<style>
.stMainBlockContainer {padding-top: 1rem; padding-bottom: 2rem}
.stAppHeader {background: none}
.stAppHeader, .stAppHeader * {pointer-events: none}
.stAppHeader button, .stAppHeader button *, [data-testid="stStatusWidget"], [data-testid="stStatusWidget"] * {
    pointer-events: auto}
.st-key-pages {border-bottom: 1px solid rgba(128,128,128,.25); padding-right: 7rem; margin-bottom: .25rem}
@media (max-width: 1150px) {.st-key-pages [data-testid="stIconMaterial"] {display: none}}
</style>"""
KEPT = ("runs", "run", "task", "doc", "choice", "repeat", "step", "layer")  # what another page is to show as well


def find_views() -> list[ModuleType]:
    """Every view module, by ORDER. One that cannot be imported raises: a broken page must not vanish."""
    names = [module.name for module in pkgutil.iter_modules(views.__path__)]
    return sorted((importlib.import_module(f"{views.__name__}.{name}") for name in names), key=lambda view: view.ORDER)


def main() -> None:
    st.set_page_config(page_title="Layerscope", page_icon=TAB, layout="wide")
    st.html(LOOK)
    found = find_views()
    pages = {
        view.URL_PATH: st.Page(view.render, title=view.TITLE, icon=view.ICON, url_path=view.URL_PATH, default=i == 0)
        for i, view in enumerate(found)
    }
    state.remember_pages(pages)
    page = st.navigation(list(pages.values()), position="hidden")
    kept = {name: state.read(name) for name in KEPT}
    with st.container(key="pages", horizontal=True, gap="small"):
        for view in found:
            state.link(view.URL_PATH, view.TITLE, icon=view.ICON, **kept)
    with controls.troubles():
        page.run()


main()
