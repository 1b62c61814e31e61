"""The page in a browser: its journeys, by keyboard alone, on a phone, in light and dark, and what WCAG asks of it.

Driven by Playwright in a Chromium that is there already (on the path, or named by FULLRANK_CHROMIUM); `make test
MARK=page` runs these.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.conftest import Shop
from serving.fake_service import TITLES, Fake, build
from serving.running import running, serving

pytestmark = [pytest.mark.slow, pytest.mark.page]
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
Open = Callable[..., Any]
AUDIT = Path(__file__).with_name("accessibility.js").read_text(encoding="utf-8")
"""An audit that runs inside a page: names of controls, references, headings, sizes, and contrast by computation.

What it looks for is of WCAG 2.2: 1.3.1, 1.4.3 (contrast of text), 1.4.11 (borders of controls), 2.5.8 (size of
targets), 3.1.1, 4.1.2. `page.evaluate(AUDIT)` gives the faults, as sentences, and how many pieces of text it looked at.
"""


@pytest.fixture(scope="module")
def browser() -> Iterator:
    found = os.environ.get("FULLRANK_CHROMIUM") or next((p for one in BROWSERS if (p := shutil.which(one))), None)
    if found is None:
        pytest.skip("there is no Chromium on the path; name one by FULLRANK_CHROMIUM")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"] if root else [])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def service() -> Iterator:
    fake = Fake()
    with serving(build(fake), port=0, log_level="error") as url:
        yield fake, f"{url}/"


@pytest.fixture
def fake(service: tuple) -> Iterator:
    """The service as it is at first."""
    one = service[0]
    one.asked.clear()
    yield one
    one.key, one.rich, one.fails, one.delay = None, True, None, 0.0


@pytest.fixture
def open_page(browser, service: tuple, fake: Fake) -> Iterator:
    """Opens the page; afterwards nothing may stand in the console, and no other host may have been asked."""
    complaints = []
    contexts = []

    def open_it(fragment: str = "", *, ready: bool = True, url: str = service[1], **how):
        context = browser.new_context(**how)
        contexts.append(context)
        context.set_default_timeout(10_000)
        page = context.new_page()
        refused = ("401 (Unauthorized)", "422 (Unprocessable", "404 (Not Found)")  # Chromium notes these by itself
        page.on("console", lambda m: m.type in ("error", "warning") and not any(one in m.text for one in refused)
                and complaints.append(m.text))  # fmt: skip
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: r.url.startswith((url, "data:")) or complaints.append(f"asked {r.url}"))
        page.goto(url + fragment)
        if ready:
            settled(page)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert not complaints


def settled(page) -> None:
    page.wait_for_selector("#lists[aria-busy=false]")


def titles(page) -> list:
    return page.locator("#past .clamp").all_inner_texts()


def shown(page, side: int = 0) -> list:
    return page.locator("#lists section").nth(side).locator(".name").all_inner_texts()


def search(page, words: str) -> None:
    page.fill("#query", words)
    page.wait_for_selector("#options:not([hidden])")


def after(page, fake: Fake, do: Callable) -> dict:
    """What was asked of the service by an act."""
    with page.expect_response("**/v1/recommend"):
        do()
    settled(page)
    return fake.asked[-1]


def test_a_history_is_clicked_together_and_changes_the_list(open_page: Open, fake: Fake) -> None:
    page = open_page()
    assert "Popular items" in page.inner_text("#status")
    before = shown(page)
    search(page, "rose")
    assert page.locator("#options [role=option]").count() == 2
    asked = after(page, fake, lambda: page.click("#options >> text=Rose water toner"))
    assert asked["history"] == ["i1"] and asked["explain"] and asked["titles"] and asked["seen"] == "exclude"
    assert titles(page) == ["Rose water toner"]
    assert shown(page) != before and "Rose water toner" not in shown(page)
    assert "Rose water toner" in page.locator(".why").first.inner_text()
    assert after(page, fake, page.locator(".recs button").first.click)["history"][0] == "i1"
    assert len(titles(page)) == 2
    moved = after(page, fake, page.locator("#past li").nth(1).locator("button").nth(0).click)
    assert moved["history"][1] == "i1"
    assert after(page, fake, page.locator("#past li").nth(0).locator("button").nth(2).click)["history"] == ["i1"]
    assert after(page, fake, lambda: page.click("#clear"))["history"] == []
    assert "10 items" in page.inner_text("#status")


def test_the_stored_history_of_a_user_is_loaded(open_page: Open, fake: Fake) -> None:
    page = open_page()
    page.fill("#user", "42")
    stored = {"item": "i8", "features": {"rating": "2"}}
    assert after(page, fake, lambda: page.press("#user", "Enter"))["history"] == ["i3", stored, "i14"]
    assert titles(page) == [TITLES[at] for at in (3, 8, 14)]
    page.fill("#user", "nobody")
    page.click("#user-form button")
    page.wait_for_selector("#history-problem >> text=Nothing is stored of the user nobody")


def test_settings_are_asked_for_as_the_service_knows_them(open_page: Open, fake: Fake) -> None:
    page = open_page("#h=i1,i2")
    asked = fake.asked[-1]
    assert not {"filters", "reasoning", "ranker", "version"} & asked.keys(), "what is not set is not sent"

    def change(act: Callable) -> dict:
        return after(page, fake, act)

    assert change(lambda: page.check("#seen"))["seen"] == "keep"
    assert change(lambda: page.uncheck("#ranker"))["ranker"] is False
    assert change(lambda: page.select_option("#steps", "0"))["reasoning"] == {"steps": 0}
    assert change(lambda: page.select_option("#streams", "2"))["reasoning"] == {"steps": 0, "streams": 2}
    page.fill("#k", "5")
    assert change(lambda: page.press("#k", "Tab"))["k"] == 5 and len(shown(page)) == 5
    page.fill("#min_score", "0.5")
    assert change(lambda: page.press("#min_score", "Tab"))["min_score"] == 0.5 and "min_score=0.5" in page.url
    page.fill("#min_score", "")
    assert "min_score" not in change(lambda: page.press("#min_score", "Tab"))
    page.click("#filters-box summary")
    assert change(lambda: page.select_option("#filter-0", "yes"))["filters"] == {"in_stock": True}
    assert change(lambda: page.check("#filter-1-2"))["filters"] == {"in_stock": True, "category": ["hair"]}
    assert len(shown(page)) == 3
    page.fill("#filter-2max", "20")
    assert change(lambda: page.press("#filter-2max", "Tab"))["filters"]["price"] == {"max": 20}
    page.fill("#filter-3", "Nivea")
    assert change(lambda: page.press("#filter-3", "Tab"))["filters"]["brand"] == "Nivea"
    assert change(lambda: page.select_option("#filter-0", ""))["filters"].keys() == {"category", "price", "brand"}
    assert "3 in use" in page.inner_text("#filters-count")


def test_features_are_fields_that_move_the_list(open_page: Open, fake: Fake) -> None:
    page = open_page("#h=i1,i2")
    assert not {"features", "time"} & fake.asked[-1].keys() and "none given" in page.inner_text("#features-count")
    before = shown(page)
    page.click("#features-box summary")
    assert page.locator("#features label").all_inner_texts() == ["age", "interests", "device"]

    def write(field: str, text: str) -> dict:
        page.fill(field, text)
        return after(page, fake, lambda: page.press(field, "Tab"))

    assert write("#feature-2", "phone")["features"] == {"device": "phone"}
    assert shown(page) != before and "request.device +0.25" in page.locator(".recs li").first.inner_text()
    assert write("#feature-0", "35")["features"] == {"age": 35, "device": "phone"}
    assert write("#feature-1", "chess, go")["features"]["interests"] == ["chess", "go"]
    assert after(page, fake, lambda: page.fill("#time", "2024-06-01T20:00"))["time"] == 1717272000
    page.click("#past li:nth-child(2) summary")
    history = ["i1", {"item": "i2", "features": {"rating": "3"}}]
    assert write("#event-1-0", "3")["history"] == history
    assert "4 given" in page.inner_text("#features-count")
    again = open_page("#" + page.url.split("#")[1])
    assert fake.asked[-1]["history"] == history and fake.asked[-1]["time"] == 1717272000
    assert fake.asked[-1]["features"] == {"age": 35, "interests": ["chess", "go"], "device": "phone"}
    after(again, fake, again.locator("#past li").nth(1).locator("button").nth(0).click)
    assert fake.asked[-1]["history"] == history[::-1], "the features of an event move with it"
    assert "features" in write("#feature-0", "") and "age" not in fake.asked[-1]["features"]
    fake.rich = False
    assert open_page().locator("#features-box").is_hidden()


def test_two_models_stand_side_by_side(open_page: Open, fake: Fake) -> None:
    page = open_page("#h=i1")
    page.select_option("#b", "tuesday")
    page.wait_for_selector("#lists.two")
    settled(page)
    assert [asked.get("version") for asked in fake.asked[-2:]].count("tuesday") == 1
    assert page.locator("#lists section").count() == 2 and shown(page, 0) != shown(page, 1)
    common = set(shown(page, 0)) & set(shown(page, 1))
    assert f"{len(common)} of them stand in both lists" in page.inner_text("#status")
    texts = page.locator("#lists section").nth(0).locator("li").all_inner_texts()
    assert sum("in B at" in text for text in texts) == len(common)
    assert sum("only here" in text for text in texts) == 10 - len(common)
    assert page.locator("#cards > div").count() == 2 and page.locator(".strips").count() == 2


def test_attention_is_walked_through_by_arrow_keys(open_page: Open) -> None:
    page = open_page("#h=i1,i2,i4,i7")
    assert page.locator(".strips tbody tr").count() == 2
    assert page.locator(".strips tbody tr").nth(0).locator("td").all_inner_texts() == ["10 %", "20 %", "30 %", "40 %"]
    page.focus(".strips")
    said = page.locator("#strips p")
    assert "Event 4 of 4" in said.inner_text(), "the event with the largest share is named first"
    page.keyboard.press("Home")
    assert f"Event 1 of 4: {TITLES[1]}" in said.inner_text() and "layer 1 10 %, layer 2 25 %" in said.inner_text()
    page.keyboard.press("ArrowRight")
    assert "Event 2 of 4" in said.inner_text() and page.locator(".strips td.on").count() == 2


def test_the_card_tells_collapse_and_fairness(open_page: Open) -> None:
    text = open_page().inner_text("#cards")
    for part in ("plr", "1,600,000", "ndcg@10 0.0571", "2 steps in 3 streams", "57.4", "of 64", "42 %", "rankmixer"):
        assert part in text, part
    assert "Popular items are shown more often" in text and "nothing collapsed" in text


def test_a_plain_model_shows_no_empty_boxes(open_page: Open, fake: Fake) -> None:
    fake.rich = False
    page = open_page("#h=i1")
    for one in ("#attention", "#reasoning", "#ranker-field", "#filters-box", "#b-field"):
        assert not page.is_visible(one), one
    assert page.locator(".why").count() == 0 and len(shown(page)) == 10
    assert "no item vectors" in page.inner_text("#cards")


def test_a_key_is_asked_for_and_kept_in_this_tab(open_page: Open, fake: Fake) -> None:
    fake.key = "secret-1"
    page = open_page(ready=False)
    page.wait_for_selector("dialog[open]")
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-problem >> text=did not take that key")
    page.keyboard.type("secret-1")
    page.keyboard.press("Enter")
    settled(page)
    assert len(shown(page)) == 10
    assert page.evaluate("[sessionStorage['fullrank.key'], JSON.stringify(localStorage)]") == ["secret-1", "{}"]
    assert "secret" not in page.url
    page.reload()
    settled(page)
    assert len(shown(page)) == 10 and not page.is_visible("dialog")


def test_without_a_key_the_page_says_so(open_page: Open, fake: Fake) -> None:
    fake.key = "secret-1"
    page = open_page(ready=False)
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#problem >> text=Without a key this service does not answer")
    fake.key = None
    assert page.is_visible("#change-key")


def test_a_problem_is_told_in_its_own_words(open_page: Open, fake: Fake) -> None:
    page = open_page("#h=i1")
    fake.fails = "price is a number: give it as {'min': 1}"
    page.check("#seen")
    page.wait_for_selector("#problem >> text=price is a number: give it as {'min': 1}")
    assert page.locator("#problem[role=alert]").count() == 1 and not page.is_visible("#attention")
    fake.fails = None
    after(page, fake, lambda: page.uncheck("#seen"))
    assert page.inner_text("#problem") == "" and len(shown(page)) == 10


def test_a_link_brings_the_same_view(open_page: Open, fake: Fake) -> None:
    page = open_page()
    page.goto(page.url + "#h=i1,i5&k=4&seen=keep&ranker=off&b=tuesday&steps=1&f=%7B%22in_stock%22%3Afalse%7D")
    page.wait_for_selector("#lists.two")
    settled(page)
    other = open_page(page.url[page.url.index("#") :])
    expected = {"history": ["i1", "i5"], "k": 4, "seen": "keep", "explain": True, "titles": True, "ranker": False}
    expected |= {"reasoning": {"steps": 1}, "filters": {"in_stock": False}}
    other.wait_for_selector("#lists.two")
    settled(other)
    assert {**fake.asked[-1], "version": 0} == {**expected, "version": 0}
    other.wait_for_selector(f"#past >> text={TITLES[5]}")
    assert shown(other) == shown(page) and other.is_checked("#seen") and not other.is_checked("#ranker")
    broken = open_page("#h=%&k=x&f=%7B&a=nowhere&steps=99&nonsense")
    assert len(shown(broken)) == 10


def test_titles_bring_no_markup(open_page: Open, fake: Fake) -> None:
    page = open_page("#h=i26,i20&k=28")
    page.wait_for_selector("#past >> text=Make-up sponge & case ★ <i> &unknown;")
    page.wait_for_selector("#past >> text=Hostile <img")
    search(page, "hostile")
    assert page.locator("main img, main b b, #options b").count() == 0
    assert page.title().startswith("fullrank")


def test_the_last_answer_wins(open_page: Open, fake: Fake) -> None:
    page = open_page("#h=i1")
    fake.delay = 0.2
    for _ in range(3):
        page.locator(".recs button").first.click()
    page.wait_for_selector("#past li:nth-child(4):last-child")
    settled(page)
    assert len(fake.asked[-1]["history"]) == 4
    assert not set(shown(page)) & set(titles(page)), "the list is that of the history that stands there"


def test_by_keyboard_alone(open_page: Open, fake: Fake) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    page.focus("#query")
    page.keyboard.type("cream")
    page.wait_for_selector("#options:not([hidden])")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    active = page.get_attribute("#query", "aria-activedescendant")
    assert page.get_attribute(f"#{active}", "aria-selected") == "true"
    assert after(page, fake, lambda: page.keyboard.press("Enter"))["history"] == ["i4"]
    assert page.evaluate("document.activeElement.id") == "query", "one can go on typing"
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#options:not([hidden])")
    page.keyboard.press("Escape")
    assert not page.is_visible("#options") and page.get_attribute("#query", "aria-expanded") == "false"
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("#options:not([hidden])")
    after(page, fake, lambda: page.keyboard.press("Enter"))
    page.keyboard.press("Tab")  # earlier of the first is disabled
    assert page.evaluate("document.activeElement.textContent") == "↓"
    assert after(page, fake, lambda: page.keyboard.press("Enter"))["history"][1] == "i4"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == f"Remove: {TITLES[4]}"
    after(page, fake, lambda: page.keyboard.press("Enter"))
    assert len(titles(page)) == 1
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Remove: ")
    after(page, fake, lambda: page.keyboard.press("Enter"))
    assert page.evaluate("document.activeElement.id") == "query"


def test_everything_is_reached_in_order_with_a_visible_focus(open_page: Open) -> None:
    page = open_page("#h=i1,i2&b=tuesday&f=%7B%22in_stock%22%3Atrue%7D")
    page.wait_for_selector("#lists.two")
    settled(page)
    wanted = page.evaluate("""() => [...document.querySelectorAll(
        "a[href], button:not(:disabled), input, select, summary, [tabindex='0']")]
        .filter(one => one.checkVisibility() && !one.closest("dialog:not([open])"))
        .map((one, n) => { one.dataset.place = n; return one.textContent.trim() || one.id; })""")
    seen = []
    for _ in range(len(wanted)):
        page.keyboard.press("Tab")
        found = page.evaluate("""() => { const one = document.activeElement, style = getComputedStyle(one);
            return {place: Number(one.dataset.place), line: style.outlineStyle, width: parseFloat(style.outlineWidth),
                    inside: one.getBoundingClientRect().width > 0}; }""")
        assert found["line"] == "solid" and found["width"] >= 2 and found["inside"], found
        seen.append(found["place"])
    assert seen == list(range(len(wanted))), "the order of the eye is the order of the key"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_what_wcag_asks(open_page: Open, scheme: str, width: int) -> None:
    how = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    page = open_page("#h=i1,i2,i23&f=%7B%22category%22%3A%5B%22hair%22%5D%7D&b=tuesday", **how)
    page.wait_for_selector("#lists.two")
    settled(page)
    page.click("#user-form button")
    search(page, "rose")
    page.keyboard.press("ArrowDown")
    page.evaluate("show('problem', new Problem('made up', 429))")
    faults, texts = page.evaluate(AUDIT)
    assert texts > 100, "the audit looks at the text"
    assert faults == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page does not scroll sideways"


def test_the_audit_finds_planted_faults(open_page: Open) -> None:
    page = open_page("#h=i1")
    page.evaluate("""() => {
        const add = (tag, text, css, given = {}) => {
            const one = document.createElement(tag); one.textContent = text; Object.assign(one, given);
            for (const [key, value] of Object.entries(css)) one.style[key] = value;
            document.querySelector("main").append(one);
        };
        add("p", "pale", {color: "#bbb", background: "#fff"});
        add("button", "", {});
        add("input", "", {border: "1px solid #eee"});
        add("h6", "after h3", {});
        add("div", "twice", {}, {id: "results"});
        add("button", "x", {minHeight: "0", padding: "0", height: "10px"});
    }""")
    faults, _ = page.evaluate(AUDIT)
    for part in ("contrast", "no name", "border", "heading", "twice", "small"):
        assert any(part in fault for fault in faults), (part, faults)


def test_the_theme_is_chosen_and_kept(open_page: Open) -> None:
    page = open_page(color_scheme="light")

    def ground() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: light" and ground() == light
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: dark" and ground() != light
    dark = ground()
    page.reload()
    settled(page)
    assert ground() == dark
    page.click("#theme")
    assert page.inner_text("#theme") == "Theme: auto" and ground() == light
    page.emulate_media(color_scheme="dark")
    assert ground() == dark


def test_targets_fit_a_thumb_on_a_phone(open_page: Open) -> None:
    page = open_page("#h=i1,i23", viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    small = page.evaluate("""() => [...document.querySelectorAll("button, select, input:not([type=checkbox])")]
        .filter(one => one.checkVisibility()).map(one => [one.id || one.textContent, one.getBoundingClientRect()])
        .filter(([, box]) => box.height < 36 || box.width < 36).map(([name]) => name)""")
    assert small == []
    page.tap(".recs li:first-child button")
    page.wait_for_selector("#past li:nth-child(3):last-child")
    settled(page)


def test_a_real_service_fills_every_part_of_the_page(open_page: Open, shop: Shop) -> None:
    with running(run=str(shop.run.path)) as client:
        client.add_events([{"user": "anna", "item": item} for item in shop.ids[:3]])
        page = open_page(url=f"{client.url.rstrip('/')}/")
        assert "Popular items" in page.inner_text("#status")
        page.fill("#user", "anna")
        page.click("#user-form button")
        page.wait_for_selector("#past li:nth-child(3):last-child")
        settled(page)
        assert len(shown(page)) == 10 and not set(shown(page)) & set(titles(page))
        assert page.locator(".why").count() and page.locator(".strips tbody tr").count() == 2
        search(page, shown(page)[0])
        page.keyboard.press("Enter")
        page.wait_for_selector("#past li:nth-child(4):last-child")
        page.click("#filters-box summary")
        with page.expect_response("**/v1/recommend"):
            page.check("#filters >> text=soap")
        settled(page)
        assert shown(page) and all("soap" in title for title in shown(page))
        with page.expect_response("**/v1/recommend"):
            page.select_option("#filters select", "yes")
        settled(page)
        assert shown(page) and "2 in use" in page.inner_text("#filters-count")
        page.wait_for_selector("#cards .bands")
        assert "Effective rank" in page.inner_text("#cards") and "sasrec" in page.inner_text("#about")
        faults, _ = page.evaluate(AUDIT)
        assert faults == []


def test_a_row_of_a_ranking_model_is_scored_by_a_form_of_its_columns(open_page: Open, click_run: Path) -> None:
    with running(run=str(click_run)) as client:
        page = open_page(url=f"{client.url.rstrip('/')}/", ready=False, viewport={"width": 390, "height": 900})
        page.wait_for_selector("#chance b")
        labels = page.locator("#row-form label").all_inner_texts()
        assert labels == ["city", "Place", "age", "price", "genres", "seen"] and not page.is_visible("#query")
        row = {"city": 2, "Place": None, "age": 55, "price": None, "genres": None, "seen": [3, 5]}
        for name, text in (("city", "2"), ("age", "55"), ("seen", "3, 5")):
            with page.expect_response("**/v1/predict"):
                page.fill(f"#column-{labels.index(name)}", text)
                page.keyboard.press("Tab")
        playwright.expect(page.locator("#chance b")).to_have_text(f"{client.predict([row])[0]:.4f}")
        assert "6 columns" in page.inner_text("#about") and "600 impressions" in page.inner_text("#cards")
        page.reload()
        playwright.expect(page.locator("#column-2")).to_have_value("55")
        faults, _ = page.evaluate(AUDIT)
        assert faults == [] and page.evaluate("document.documentElement.scrollWidth") <= 390
