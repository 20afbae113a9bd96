"""One file per page: TITLE, ICON, ORDER, URL_PATH, render(). The folder is the registry; no view imports another."""
