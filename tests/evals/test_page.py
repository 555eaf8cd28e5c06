"""The page: it needs no other file, shows everything, and a model's words on it have no effect."""

from __future__ import annotations

import asyncio
import html.parser
import itertools
import re
from pathlib import Path

import msgspec
import pytest

from dirigent.evals.metrics import Alone, Capacity
from dirigent.evals.page import as_html, pareto_front
from dirigent.evals.plots import Markup, Point, escaped, joined, scatter, stacked_bars, tag
from dirigent.evals.report import Example, ExampleStep, Facts, Report, as_json, examples, make_report
from dirigent.evals.tables import Earlier, Weights
from dirigent.tasks import Task
from dirigent.workers.worker import Price
from tests.evals.samples import outcome
from tests.programs import need

PAYLOADS = (
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\"><svg onload=document.title='owned'>",
    "'><iframe srcdoc='<script>parent.document.title=1</script>'>",
    "</title></style></pre><script>document.title='owned'</script>",
    "javascript:document.title='owned'",
    "{{constructor.constructor('document.title=1')()}}",
    "<a href='javascript:document.title=1'>x</a><style>@import 'http://127.0.0.1:9/x'</style>",
    "\x00\x1b[31m<b>\u202e",
    "&lt;script&gt;",
)


def report_with(text: str) -> Report:
    """A report with this text in every field that is shown."""
    rows = [
        outcome(name, str(i), correct=i % (2 + k) == 0, workers="ab", cost_usd=0.001 * 40**k, kind=f"t{i % 2}{text}")
        for k, name in enumerate(("best", f"conductor{text}", "language", "vote"))
        for i in range(12)
    ]
    rows = [msgspec.structs.replace(o, plan=_renamed(o, text)) for o in rows]
    facts = Facts(
        recipe={f"key{text}": text, "recipe": text},
        commit=text,
        seed=1,
        date=text,
        version=text,
        tasks={"name": text, "n": 12, "pool": text, "left_out": {text: 3}},
        workers=text,
        prices={f"w{text}": Price(1.0, 2.0)},
        fit={"n": 3, "cost_usd": 0.5},
        notes={"best": text, "vote": text},
        weights={"language": Weights(recipe=text, commit=text, sha256=text, claims=text)},
        earlier={"vote": Earlier(commit=text, date=text)},
        examples=(Example(text, text, text, True, False, text, (ExampleStep(text, text, (0,)),), text),),
    )
    names = ["best", f"conductor{text}", "language", "vote"]
    report = make_report(
        rows, names, facts=facts, references=(), complete=False, task_of=lambda o: o.kind, equal_cost="vote"
    )
    alone = Alone(3, 0.5, (0.2, 0.8), 0.1, 10.0, 1.0)
    return msgspec.structs.replace(
        report, verdict=text, capacity={text: Capacity(3, {text: alone}, text, 0.6, (0.3, 0.9), 0.1, 0.2)}
    )


def _renamed(found: object, text: str) -> object:
    plan = found.plan  # type: ignore[attr-defined]
    steps = tuple(msgspec.structs.replace(step, worker=f"{step.worker}{text}") for step in plan.steps)
    return msgspec.structs.replace(plan, steps=steps)


class Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Elements()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser.found


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_models_words_are_escaped_everywhere(payload: str) -> None:
    tame = elements(as_html(report_with("x")))
    wild = elements(as_html(report_with(payload)))
    assert [name for name, _ in wild] == [name for name, _ in tame]
    for name, attributes in wild:
        assert name not in ("script", "iframe", "img", "a", "link", "object", "base", "form")
        assert not [key for key in attributes if key.startswith("on") or key in ("href", "src", "style")]


def test_the_page_loads_nothing_and_forbids_it() -> None:
    page = as_html(report_with("x"))
    policy = [a["content"] for _, a in elements(page) if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    addresses = set(re.findall(r"https?://[^\"' <]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page
    assert "url(" not in page


def test_the_page_has_everything_that_makes_a_report_believable() -> None:
    page = as_html(report_with("X9"))
    for words in ("Commit X9", "seed 1", "Prices, USD"):
        assert words in page
    assert "X9 (3)" in page
    assert "Incomplete" in page
    for section in ("Does it pay?", "By task", "Plans", "Each worker alone", "Examples", "Where it comes from"):
        assert f"<h2>{section}</h2>" in page


def test_a_page_made_again_from_its_json_is_the_same_page() -> None:
    report = msgspec.structs.replace(report_with("x"), recipe={"sets": ("gym", "gym:novel"), "limit": 5})
    read = msgspec.json.decode(as_json(report), type=Report)
    assert as_html(read) == as_html(report)
    assert "gym, gym:novel" in as_html(report)


def test_plots_describe_themselves_in_words_and_both_schemes_have_colours() -> None:
    page = as_html(report_with("x"))
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) >= 3
    assert all("<title>" in plot and "<desc>" in plot and 'role="img"' in plot for plot in plots)
    assert "prefers-color-scheme:dark" in page
    assert '<html lang="en">' in page
    assert 'scope="row"' in page


def test_the_front_holds_those_that_nothing_beats_at_the_same_cost_and_no_reference() -> None:
    rows = [
        *(outcome("cheap", str(i), correct=i < 4, cost_usd=0.1) for i in range(10)),
        *(outcome("worse", str(i), correct=i < 3, cost_usd=0.2) for i in range(10)),
        *(outcome("dear", str(i), correct=i < 8, cost_usd=0.3) for i in range(10)),
        *(outcome("oracle", str(i), correct=True, cost_usd=0.05) for i in range(10)),
    ]
    facts = Facts(recipe={}, commit="", seed=1, date="", version="", tasks={}, workers="", prices={})
    report = make_report(rows, ["cheap", "worse", "dear", "oracle"], facts=facts, references=("oracle",), complete=True)
    assert pareto_front(report.planners) == ["cheap", "dear"]


def test_costs_far_apart_stand_on_a_logarithmic_axis_and_free_ones_before_them() -> None:
    points = [
        Point("free", 0.0, 0.2, (0.1, 0.3)),
        Point("cheap", 0.001, 0.5, (0.4, 0.6)),
        Point("dear", 1.0, 0.9, (0.8, 1.0)),
    ]
    xs = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', scatter(points, ["free", "cheap", "dear"], title="t"))]
    assert xs == sorted(xs)
    middle = Point("middle", 0.0316, 0.6, (0.5, 0.7))
    with_middle = scatter([*points, middle], [], title="t")
    found = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', with_middle)]
    assert found[3] == pytest.approx((found[1] + found[2]) / 2, abs=1)


def test_labels_do_not_cover_one_another() -> None:
    points = [Point(f"p{i}", 0.1, 0.5, (0.4, 0.6)) for i in range(12)]
    plot = scatter(points, [], title="t")
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)" class="label">p', plot))
    assert all(b - a >= 14.9 for a, b in itertools.pairwise(heights))


def test_bars_fill_their_row_and_name_their_parts() -> None:
    plot = stacked_bars({"gsm8k": {"1 step": 0.25, "2 steps": 0.75}}, title="steps")
    first, second = (float(w) for w in re.findall(r'width="([\d.]+)" height="22"', plot))
    assert second == pytest.approx(3 * first, abs=0.05)
    assert "gsm8k: 1 step 25%" in plot


def test_parts_stand_in_the_order_given_and_keep_their_colours_where_others_are_missing() -> None:
    plot = stacked_bars({"x": {"b": 3, "a": 1}, "y": {}}, title="t", series=["a", "gone", "b"])
    assert re.findall(r'class="part c(\d)"><title>x: (\w)', plot) == [("0", "a"), ("2", "b")]
    assert "gone" not in plot
    assert "y: " in plot


def test_words_on_a_pale_part_are_dark() -> None:
    plot = stacked_bars({"x": {str(i): 1 for i in range(10)}}, title="t")
    assert re.findall(r'class="(\w+)">10%</text>', plot) == ["inside"] * 8 + ["label"] * 2


def test_nothing_measured_is_said_and_not_drawn() -> None:
    for plot in (scatter([], [], title="t"), stacked_bars({}, title="t"), stacked_bars({"x": {}}, title="t")):
        assert "<svg" not in plot
        assert re.sub("<[^>]*>", "", plot).strip()


def test_only_markup_passes_unescaped() -> None:
    assert tag("p", "<b>", tag("i", "&"), class_='a"b') == '<p class="a&quot;b">&lt;b&gt;<i>&amp;</i></p>'
    assert joined("<", Markup("<br/>"), None) == "&lt;<br/>"
    assert escaped("a\x00b") == "a�b"


def test_examples_are_where_planner_and_best_worker_differ_and_withheld_sets_show_none() -> None:
    tasks = [Task(str(i), f"question {i}", "1", kind="gsm8k") for i in range(4)]
    tasks.append(Task("secret", "question of gpqa", "A", kind="gpqa"))
    found = [
        *(outcome("best", task.id, correct=task.id in ("0", "1")) for task in tasks),
        *(outcome("moa", task.id, correct=task.id in ("1", "2", "secret"), workers="abc") for task in tasks),
    ]
    shown = examples(found, tasks, ["best", "moa"])
    assert [(e.question, e.correct, e.best_correct) for e in shown] == [
        ("question 0", False, True),
        ("question 2", True, False),
    ]
    assert [step.worker for step in shown[0].steps] == ["a", "b", "c"]
    assert len(examples([outcome("moa", "0", workers="a")], [Task("0", "q" * 5000, "1")], ["moa"])[0].question) == 600


@pytest.mark.system
async def test_in_a_browser_no_payload_runs_and_the_plots_are_drawn(tmp_path: Path) -> None:
    chromium = need("chromium")
    page = tmp_path / "r.html"
    await asyncio.to_thread(page.write_text, as_html(report_with("".join(PAYLOADS[:8]))), "utf-8")
    process = await asyncio.create_subprocess_exec(
        chromium,
        *(
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={tmp_path}/profile",
        ),
        *("--virtual-time-budget=2000", "--dump-dom", page.as_uri()),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        shown, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    dom = shown.decode()
    assert "<title>owned</title>" not in dom
    assert "<script" not in dom
    assert dom.count("<svg") >= 3
    assert "<figcaption>" in dom
