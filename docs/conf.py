"""Sphinx configuration: the Markdown pages of this folder, and what the docstrings of the public names say.

    pip install -e '.[docs]' && sphinx-build -W docs build/docs
"""

from __future__ import annotations

from refattn import __version__

project = "refattn"
author = "the refattn developers"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["examples"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# Links out of this folder (the README, the changelog, sources) are meant for readers of the repository.
suppress_warnings = ["myst.xref_missing", "toc.not_included"]
numpydoc_show_class_members = False
html_theme = "pydata_sphinx_theme"
