"""The workflows test every Python that the package names, and release every distribution without a stored token."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
HOSTING = ROOT / ".github"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]


def read(name: str) -> Any:
    return yaml.safe_load((HOSTING / name).read_text(encoding="utf-8"))


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


def test_the_script_of_the_repository_runs_on_every_python_of_the_package() -> None:
    job = read("workflows/test.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == VERSIONS
    assert ".ci/run" in commands(job).splitlines()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_script_runs_the_bare_machine_before_it_installs_packages() -> None:
    targets = re.findall(r"^make ([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert targets[:2] == ["test-bare", "system-deps"]
    assert {"check", "test", "integrations-plain", "torture-ci"} <= set(targets)


def test_a_release_builds_every_distribution_and_stores_no_token() -> None:
    release = read("workflows/release.yml")
    built = re.search(r"for project in (.*); do", commands(release["jobs"]["build"]))
    assert built is not None
    found = {str(file.parent.relative_to(ROOT)) for file in ROOT.glob("pyproject.toml")}
    found |= {str(file.parent.relative_to(ROOT)) for file in ROOT.glob("*/pyproject.toml")}
    assert found <= set(built[1].split())
    publish = release["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert set(publish["needs"]) == {"test", "build"}
    assert "secrets." not in (HOSTING / "workflows" / "release.yml").read_text()


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_an_issue_form_asks_for_something(name: str) -> None:
    form = read(f"ISSUE_TEMPLATE/{name}.yml")
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_every_link_of_the_security_page_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert links
    assert all((ROOT / link).exists() for link in links)
