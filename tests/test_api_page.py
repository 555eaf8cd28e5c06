"""The page of the API names every route, field, header and status that the server knows."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent.serve.apis.anthropic.wire import MessagesRequest
from dirigent.serve.apis.chat.wire import ChatRequest
from dirigent.serve.apis.dirigent_field import FIELDS, PREFIX
from dirigent.serve.apis.feedback import FeedbackRequest
from dirigent.serve.apis.responses.wire import ResponseRequest
from dirigent.serve.apis.usage import PARAMETERS
from dirigent.serve.http.app import ENDPOINTS
from dirigent.serve.runs.asked import Extension, PoolChoice

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "api.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^## [^\n]*{re.escape(title)}[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {title!r}"
    return found[1]


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def test_the_tables_made_from_the_code_are_current() -> None:
    generate: dict[str, Any] = runpy.run_path(str(DOCS / "generate.py"), run_name="generate")
    assert generate["api_page"]() == PAGE, "run  python docs/generate.py"


def test_every_route_is_listed() -> None:
    named = names_in(section("Routes"))
    for endpoint in ENDPOINTS:
        assert f"{endpoint.method} {endpoint.path.replace(':path}', '}')}" in named


@pytest.mark.parametrize(
    ("title", "struct"),
    [
        ("`POST /v1/chat/completions`", ChatRequest),
        ("`POST /v1/responses`", ResponseRequest),
        ("`POST /v1/messages`", MessagesRequest),
        ("`POST /v1/feedback`", FeedbackRequest),
    ],
)
def test_the_page_lists_exactly_the_fields_of_a_request(title: str, struct: type[msgspec.Struct]) -> None:
    text = section(title)
    first_table = text[text.index("| field |") :].split("\n\n")[0]
    cells = [line.split("|")[1] for line in first_table.splitlines()[2:]]
    assert names_in(" ".join(cells)) == set(struct.__struct_fields__)


def test_the_page_lists_every_field_of_the_extension_with_its_header() -> None:
    text = section("`dirigent`")
    pool = {f"pool.{name}" for name in PoolChoice.__struct_fields__}
    assert names_in(text) >= (set(Extension.__struct_fields__) - {"pool"}) | pool
    for name in FIELDS:
        assert re.search(rf"`{PREFIX}{name}[`:]", text, re.IGNORECASE), name


def test_the_page_lists_every_parameter_of_usage() -> None:
    assert names_in(section("`GET /v1/usage`")) >= set(PARAMETERS)


@pytest.mark.parametrize("page", ["api", "deploy", "governance", "cost", "integrations"])
def test_every_link_between_the_pages_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (DOCS / f"{page}.md").read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        text = (DOCS / (file or f"{page}.md")).read_text(encoding="utf-8")
        titles = {re.sub(r"[^a-z0-9 -]", "", t.lower()).replace(" ", "-") for t in re.findall(r"^#+ (.*)$", text, re.M)}
        assert not anchor or anchor in titles, target
