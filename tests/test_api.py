"""The public API: pinned, lazy, and light to import."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import dirigent

HEAVY = ("aiohttp", "genai_prices", "rich", "sqlalchemy", "alembic", "torch", "starlette", "typer", "xllamacpp")


def test_every_public_name_is_importable_and_nothing_else_is_listed() -> None:
    assert sorted(dirigent.__all__) == sorted({*dirigent._HOME, "__version__"})
    for name, module in dirigent._HOME.items():
        assert getattr(dirigent, name) is getattr(import_module(module), name)


def test_no_public_name_is_a_module_too() -> None:
    # Once such a module is loaded, its name in the package hides the public name.
    modules = {module.name for module in pkgutil.iter_modules(dirigent.__path__)}
    assert not modules & set(dirigent.__all__)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(dirigent.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(dirigent._HOME)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(dirigent, "Orchestrator")


def test_importing_loads_nothing_heavy() -> None:
    code = f"import sys, dirigent; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_whole_core_loads_nothing_heavy_either() -> None:
    code = f"import sys; from dirigent import *; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
