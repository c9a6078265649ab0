"""Sphinx configuration: `python -m nox -s docs` builds docs/_build/html, every warning an error."""

from __future__ import annotations

project = "Machete"
author = "The Machete authors"
project_copyright = "The Machete authors"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

# Headings down to this level can be linked to, `contributing.md#a-new-package`.
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Machete"
