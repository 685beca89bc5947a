"""Settings of the documentation site, which `make docs` builds with Sphinx."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import textwrap
from typing import Any

project = "aiodist"
author = "aiodist contributors"
project_copyright = "aiodist contributors"
release = importlib.metadata.version("aiodist")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.programoutput",
]
exclude_patterns = ["_build"]

# Pages are Markdown, and links between headings of pages work as they do on a forge.
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# Docstrings are reStructuredText, in which `Work` names an object of Python. Their lists of parameters
# are written in Google's style: "Args:", "Returns:", "Raises:".
napoleon_numpy_docstring = False
default_role = "py:obj"
autodoc_member_order = "bysource"
autoclass_content = "both"
autodoc_mock_imports = ["distributed", "ray"]  # engines, whose packages are large
add_module_names = False
maximum_signature_line_length = 88

# Every name in a docstring must have a place in the reference. Signatures also name types of Python and
# torch, whose documentation is not at hand without a network; mypy checks these.
nitpicky = True
PYTHONS_ERRORS = [
    "Exception",
    "AssertionError",
    "OSError",
    "TypeError",
    "ValueError",
    r"asyncio\.CancelledError",
    r"bdb\.BdbQuit",
]
nitpick_ignore_regex = [("py:class", r".*"), ("py:exc", "|".join(PYTHONS_ERRORS))]

html_theme = "furo"
html_favicon = "_static/icon.svg"
html_title = f"aiodist {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False


def setup(app: Any) -> None:
    """Connect what this file adds to Sphinx."""
    app.connect("autodoc-process-signature", _as_in_the_source)
    app.connect("missing-reference", _in_the_async_api)


def _in_the_async_api(app: Any, env: Any, node: Any, child: Any) -> Any:
    """Resolve a name that is not in the module at hand as one of the async API."""
    if node.get("refdomain") != "py" or node["reftarget"].startswith("aiodist."):
        return None
    domain, target = env.get_domain("py"), f"aiodist.{node['reftarget']}"
    if target not in domain.objects:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, child)


def _as_in_the_source(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> tuple[str, str | None] | None:
    """Return the signature with the names of types and defaults that its file has.

    autodoc evaluates them: ``Tensor`` would be shown as ``Any``, a default as its repr.
    """
    function = obj.__init__ if what in ("class", "exception") else obj
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    except (TypeError, OSError):
        return None
    (node, *_) = ast.parse(source).body
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    args = node.args
    if what in ("class", "exception", "method") and args.args and not isinstance(obj, staticmethod):
        args.args = args.args[1:] if args.args[0].arg in ("self", "cls") else args.args
    if what in ("class", "exception"):
        return f"({ast.unparse(args)})", None
    result = ast.unparse(node.returns) if node.returns else None
    if hasattr(obj, "__signature__"):  # made by a decorator, which says what it returns
        result = inspect.signature(obj).return_annotation
    if result and any("contextmanager" in ast.unparse(each) for each in node.decorator_list):
        result = re.sub(r"^(Async)?Iterator", r"Abstract\1ContextManager", result)
    return f"({ast.unparse(args)})", result
