"""Sphinx: `python -m sphinx -W docs BUILD` makes pages of these files."""

project = "thunder_fuser"
extensions = ["myst_parser"]
html_theme = "furo"
myst_heading_anchors = 3
# Files of the repository that are no pages: links to them are checked by tests/test_documents.py.
suppress_warnings = ["myst.xref_missing"]
