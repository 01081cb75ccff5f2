"""The documentation site: the pages of docs/ as they are, and a reference from docstrings.

The source directory is the repository itself, so a link works in a checkout and on the site.
"""

from pathlib import Path
from typing import Any

from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).parents[2]

project = "koordlet"
author = "the koordlet authors"
copyright = author  # the name that Sphinx gives this setting

root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/bed/README.md",
    "docs/*.md",
    "docs/api/*.rst",
    "docs/decisions/*.md",
    "docs/start/*.md",
]
exclude_patterns = [".*", "build", "deploy", "koord*", "plugins", "requirements", "tests"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 5  # as GitHub has them; a link to one that is missing fails the build
myst_enable_extensions = ["tasklist"]
# Sessions and plain samples are shown as they are: nothing guesses their language.
highlight_language = "text"
suppress_warnings = [
    "misc.highlighting_failure",  # a sample may be cut, as `{"blocks": ...`
    "ref.python",  # a type that two faces export has two targets, and either is right
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "imported-members": True, "show-inheritance": True}
python_use_unqualified_type_names = True
napoleon_use_rtype = False

html_theme = "furo"  # light and dark, 400 px, and no request to another server
html_title = "koordlet"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_extra_path = ["extra"]  # / leads to docs/index.html


class DirectoryLinks(SphinxPostTransform):
    """Shows the text of a link to a directory of the repository, which the site does not have."""

    default_priority = 8  # before MyST reports the link as dead

    def run(self, **kwargs: object) -> None:
        """Replace such links by their text."""
        page = (ROOT / self.env.current_document.docname).parent
        for link in list(self.document.findall(pending_xref)):
            target = (page / link["reftarget"].partition("#")[0]).resolve()
            if link["reftype"] == "myst" and target.is_dir() and target.is_relative_to(ROOT):
                link.replace_self(link.children)


class PluginFaces(PythonDomain):
    """Knows an object by the names under which plugins import it.

    Several faces export one class; its own module is no name that a plugin may use.
    """

    def note_object(
        self, name: str, objtype: str, node_id: str, aliased: bool = False, location: Any = None
    ) -> None:
        """Record a name, unless it is where the code lives."""
        if not aliased:
            super().note_object(name, objtype, node_id, aliased, location)


def setup(app: Sphinx) -> None:
    """Register the two."""
    app.add_post_transform(DirectoryLinks)
    app.add_domain(PluginFaces, override=True)
