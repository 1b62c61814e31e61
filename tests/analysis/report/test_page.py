"""The page: every figure with its alt text and numbers, nothing fetched, nothing run, all text of data escaped."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import fullrank as fr
from fullrank.analysis.report import Examples, Figure, Missing
from fullrank.analysis.report.page import Report, format_cell
from fullrank.analysis.report.report import report
from refusals import refused
from tests.analysis.report.conftest import HOSTILE, Page, make

OPEN = ["recall_bands", "pareto", "bands", "robustness", "shortcut", "curves", "depth", "size"]
FOLDED = ["spectrum", "bound", "focus", "case", "layers"]
JOINT = OPEN + FOLDED


@pytest.fixture(scope="module")
def whole(runs) -> Report:
    return report(list(runs.values()), users=40)


def drawn(made) -> list:
    return [figure for figure in made.figures if isinstance(figure, Figure) and figure.panels]


def test_every_figure_is_there_with_its_numbers(whole) -> None:
    single = [f"{kind}-{key}" for key in "ABC" for kind in ("attention", "ablation")]
    assert sorted(figure.name for figure in drawn(whole)) == sorted(JOINT + single)
    page = Page(whole.html)
    panels = [panel for figure in drawn(whole) for panel in figure.panels]
    pictures = page.named("svg")
    assert len(pictures) == len(panels)
    assert [picture["aria-label"] for picture in pictures] == [panel.alt for panel in panels]
    assert all(picture["role"] == "img" and len(picture["aria-label"] or "") > 30 for picture in pictures)
    assert len(page.named("figure")) == len(drawn(whole)) == len(page.named("figcaption"))
    for figure in drawn(whole):
        assert figure.name in page.ids() and figure.caption in page.said()
        assert figure.rows and all(len(row) == len(figure.headers) for row in figure.rows), figure.name
        body = whole.html.partition(f'id="{figure.name}"')[2].partition("</section>")[0]
        folded = 0 if figure.open else 1
        assert body.count("<details>") == folded and body.count("<tr>") == len(figure.rows) + 1
        assert all(axis in body for axis in ("xtick_1", "ytick_1")), "axes have their ticks"


def test_what_cannot_be_drawn_says_why(whole) -> None:
    missing = {figure.name: figure.why for figure in whole.figures if isinstance(figure, Missing)}
    assert missing["attention-D"] == "gru: it has no attention that shows its weights."
    assert missing["ablation-E"] == "popularity: it has no blocks to leave out."
    text = Page(whole.html).said()
    assert all(why in text for why in missing.values())
    assert "Run E (popularity) is not shown: it has no layers." in text


def test_ids_are_unique_and_links_lead_somewhere(whole) -> None:
    page = Page(whole.html)
    assert len(set(page.ids())) == len(page.ids())
    targets = [link["href"] for link in page.named("a")]
    targets += [use["xlink:href"] for use in page.named("use")]
    targets += [f"#{name}" for name in re.findall(r"url\(#([^)]+)\)", whole.html)]
    assert len(targets) > 50
    assert all(target is not None and target[0] == "#" and target[1:] in page.ids() for target in targets)


def test_nothing_is_fetched_and_nothing_runs(whole) -> None:
    page = Page(whole.html)
    assert not re.search(r"(https?:)?//\w", whole.html), "no address of any kind"
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "image", "foreignobject"}
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
    policy = [meta["content"] for meta in page.named("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy and "default-src 'none'" in (policy[0] or "")


@pytest.mark.slow
def test_it_is_the_same_page_each_time(whole, runs) -> None:
    assert report(list(runs.values()), users=40).html == whole.html


NAMES = ["<img src=x onerror=alert(1)>", "$\\frac{$", "_hidden", "a\"b'&c", "{{ 7 * 7 }}", "bell\x07", "x" * 200]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in NAMES[:2])) for n in NAMES])
def test_hostile_names_are_text(name, store, tmp_path) -> None:
    shallow = [f"model.encoder.layers={n}" for n in (1, 2)]
    pair = [make(store, tmp_path / "one" / name, shallow[0]), make(store, tmp_path / "two", shallow[1])]
    made = report(pair, users=20)
    page = Page(made.html)
    shown_name = name.replace("\x07", "\ufffd")
    assert f"Run A: {' '.join(shown_name.split())}" in page.said()
    assert not page.named("img") and not page.named("script")
    assert "{{" not in name or "49" not in page.said().partition("Run A:")[2][:20]


def test_hostile_titles_are_text(whole) -> None:
    page = Page(whole.html)
    (case,) = (figure for figure in drawn(whole) if figure.name == "case")
    told = 1 + len(case.rows)  # the item chosen next, and the events before it
    (lists,) = (one for one in whole.figures if isinstance(one, Examples))
    told += sum(len(one.history) + len(one.chosen) + sum(len(each.items) for each in one.lists) for one in lists.users)
    assert page.said().count("<script>alert(1)</script>") == 50 + told, "ten items of each run, the case and the lists"
    assert not page.named("script") and not page.named("img")
    assert HOSTILE not in whole.html and "{{ 7 * 7 }}" in page.said()


def test_one_baseline_alone_has_a_page(runs, tmp_path) -> None:
    made = fr.report(runs["popularity"], tmp_path / "deep" / "page.html", users=20)
    assert (tmp_path / "deep" / "page.html").read_text(encoding="utf-8") == made.html
    assert {figure.name for figure in drawn(made)} == {"recall_bands", "bands", "spectrum", "robustness", "shortcut"}
    text = Page(made.html).said()
    assert "it compares runs, and the report has one" in text and "another run on the page would say" in text
    assert "ollaps" not in " ".join(made.sentences), "of a popularity ranking it says nothing new"


@pytest.mark.slow
def test_many_runs_keep_their_own_look(runs, store, tmp_path) -> None:
    several = [make(store, tmp_path / f"r{n}", recipe="popularity") for n in range(30)]
    made = report(several, users=20)
    assert [one.key for one in made.results[24:28]] == ["Y", "Z", "A1", "B1"]
    Page(made.html)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("nan"), "–"), (12345, "12,345"), (0.123456, "0.1235"), (12345.6, "12,346"), ("a", "a")],
)
def test_cells(value, text) -> None:
    assert format_cell(value) == text


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_extra_is_named(package, runs, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with refused("missing-package", package, "[report]"):
        report([runs["popularity"]])


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")


def browser() -> str:
    """A Chromium: that of FULLRANK_CHROMIUM, or one on the path; the test is skipped with the reason else."""
    given = os.environ.get("FULLRANK_CHROMIUM")
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if given is None and found is None:
        pytest.skip("there is no Chromium on the path; name one by FULLRANK_CHROMIUM")
    return given or str(found)


MEASURE = """<pre id="measured"></pre><script>
const cut = [...document.querySelectorAll("table.whole")].filter(t => !t.closest("details"))
  .map(t => Math.max(t.scrollWidth, t.getBoundingClientRect().right) - document.documentElement.clientWidth);
for (const one of document.querySelectorAll("details.internals")) one.open = true;
const boxes = {};
for (const section of document.querySelectorAll("section[id]")) {
  boxes[section.id] = [...section.querySelectorAll(":scope > figure svg")].map(s => {
    const b = s.getBoundingClientRect();
    return [b.width, b.height, s.querySelectorAll("text").length];
  });
}
document.getElementById("measured").textContent = JSON.stringify(
  {boxes, cut, wide: document.documentElement.scrollWidth, window: window.innerWidth, title: document.title});
</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [500, 1200, 1600])
def test_a_browser_shows_every_figure(width, whole, tmp_path) -> None:
    program = browser()
    text = re.sub(r"<meta http-equiv[^>]*>", "", whole.html).replace("</body>", MEASURE + "</body>")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},900"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "page.html").as_uri()]
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.S)
    assert found is not None, "the page's own script did not run: hostile text broke the page"
    measured = json.loads(found[1])
    assert measured["title"] == "What 5 runs recommend, and why"
    assert measured["wide"] <= measured["window"], "the page does not scroll sideways"
    assert len(measured["cut"]) == 3 and max(measured["cut"]) <= 0, "no table of the answer is cut"
    for figure in drawn(whole):
        boxes = measured["boxes"][figure.name]
        assert len(boxes) == len(figure.panels), figure.name
        for wide, high, texts in boxes:
            assert wide >= 300 and high >= 150 and texts >= 4, (figure.name, boxes)
