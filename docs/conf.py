"""How Sphinx builds the site; `python -m docs.building` makes what it needs first."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from bubblescope.model.version import __version__
from docs.building import sphinx_extension

project = "bubblescope"
author = "The bubblescope maintainers"
copyright = author  # noqa: A001  the name that Sphinx reads
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    sphinx_extension.__name__,
]
exclude_patterns = ["building", "site"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # documents from elsewhere may begin at any level
    "ref.python",  # the name of an attribute that several classes have
]

autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "code"  # our docstrings are read in terminals, and name things in single backticks
add_module_names = False
python_display_short_literal_types = True

smartquotes = False  # options begin with two hyphens

html_theme = "furo"
html_title = "bubblescope"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "monokai"

copybutton_exclude = ".linenos, .gp, .go"

linkcheck_timeout = 20
linkcheck_anchors = False
