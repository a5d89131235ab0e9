"""The page in a browser: no network requests, no errors, and working controls."""

import html
import re
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from report.files import content

from jdml import report
from jdml.data import Dataset
from jdml.report import Run

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "\"quotes\" 'and' `ticks` &amp; {{ 7 * 7 }}",
    "مرحبا بالعالم\u202e rtl",
    "🐦‍🔥 \u2028 emoji",
    "x" * 500,
]
TAME = [f"class {i}" for i in range(len(HOSTILE))]
EACH = 12
PATIENCE = 300_000  # milliseconds, where many programs share the cores
IN_BROWSER = pytest.mark.slow  # starts a browser


def make_runs(names):
    """Return two runs on the same pictures with proxies, charges and logs, and one without any of these."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(names)), EACH)
    images = rng.integers(0, 256, (len(labels), 8, 8, 1)).astype(np.uint8)
    views = {"kind": labels, "parity": labels % 2}
    data = Dataset(names[0], images, labels, views, {"kind": tuple(names)})
    centres = rng.normal(size=(len(names), 6))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    field = {"recipe": {"loss": {"name": "potential_field", "settings": {"delta": 0.3}}}}
    about = {"config": field, "command": f"jdml train --note {names[2]}", "versions": {"a": "1"}}
    log = [{"step": s, "loss": 9.0 / s, "grad_norm": 1.0, names[1]: s / 9} for s in range(1, 9)]
    runs = []
    for place, noise in enumerate((0.35, 0.8)):
        x = centres[labels] + noise * rng.normal(size=(len(labels), 6))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        settings = {"loss_setting": ["delta=0.3"], "note": names[2 + place]}
        shown = {"embeddings": x, "data": data, "proxies": centres[:, None]}
        shown |= {"train": data, "train_embeddings": x}
        scores = {"test kind R@1": 0.5 + place / 4}
        runs.append(Run(names[place], settings, 0, scores, log, **about, **shown))
    scores = {"test kind R@1": 0.1}
    return [*runs, Run(names[4], {"loss": "other"}, 0, scores, paper={"R@1": 61.5})]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    out = {kind: tmp_path_factory.mktemp(kind) / "r.html" for kind in ("hostile", "tame")}
    report.html_report(make_runs(HOSTILE), out["hostile"], title=HOSTILE[0])
    report.html_report(make_runs(TAME), out["tame"], title=TAME[0])
    return out


def test_page_contains_no_address(pages):
    text = pages["tame"].read_text()
    assert not re.search(r"(https?:)?//[\w.]+\.\w", re.sub(r"data:[\w/+;,=]+", "", text))
    assert "default-src 'none'" in text
    assert pages["tame"].stat().st_size < 1e6


def test_names_are_escaped(pages, tmp_path):
    text = pages["hostile"].read_text()
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    data = content(pages["hostile"])
    assert data["sets"][0]["views"]["kind"]["names"] == HOSTILE
    assert data["rows"][:2] == HOSTILE[:2]
    runs = [Run(name, {"note": f"a [b] [{name}]"}, metrics={"R@1": 0.5}) for name in "cd"]
    text = report.html_report(runs, tmp_path / "r.html").read_text()
    assert "a [b]<br><small>[c]</small>" in text


def test_page_has_the_summary_of_the_command(pages):
    text = pages["hostile"].read_text()
    (shown,) = re.findall(r'<ul class="notes" id="sentences".*?>(.*?)</ul>', text, re.S)
    lines = [html.unescape(line) for line in re.findall(r"<li.*?>(.*?)</li>", shown, re.S)]
    assert lines == report.summary_sentences(report.compare_runs(make_runs(HOSTILE)))


def test_thinned_curve_keeps_its_last_point(tmp_path):
    log = [{"step": step, "loss": 1.0} for step in range(1, 1502)] + [{"step": 1502, "loss": 9.0}]
    page = report.html_report(Run("a", log=log), tmp_path / "r.html")
    points = content(page)["curves"][0]["lines"][0]["points"]
    assert (points[0], points[-1], len(points) < 1000) == ([1, 1.0], [1502, 9.0], True)


# In the browser


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the dev extra)")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("needs chromium (apt-get install chromium)")
    with sync_api.sync_playwright() as started:
        options = ["--no-sandbox"]
        opened = started.chromium.launch(executable_path=program, args=options, timeout=PATIENCE)
        yield opened
        opened.close()


@contextmanager
def open_page(browser, path, width=1280, height=900, **options):
    """Open a page in a window, without any request but that for the page, and without errors."""
    asked, complaints = [], []
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]", state="attached")
    yield page
    context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]


@pytest.fixture(scope="module")
def tab(browser, pages):
    with open_page(browser, pages["tame"]) as page:
        yield page


@IN_BROWSER
def test_hostile_names_change_only_the_text(browser, pages):
    """The same elements are on both pages, and neither is wider than its window."""
    count = """() => {
      const n = {};
      for (const e of document.querySelectorAll('body *')) n[e.tagName] = (n[e.tagName] || 0) + 1;
      return n;
    }"""
    with open_page(browser, pages["hostile"]) as page:
        names = page.locator("#classes tbody th").all_text_contents()
        assert sorted(names) == sorted(HOSTILE)
        with open_page(browser, pages["tame"]) as tame:
            assert page.evaluate(count) == tame.evaluate(count)
        assert page.evaluate("document.documentElement.scrollWidth") == 1280
        assert page.title() == HOSTILE[0]
        page.mouse.wheel(0, 5000)
        page.wait_for_timeout(100)


def queries(tab):
    """Return the captions of the queries that are shown."""
    return tab.locator("#gallery figure.query figcaption").all_text_contents()


@IN_BROWSER
def test_queries_are_filtered_and_sorted(tab):
    only = tab.get_by_label("Only class")
    only.select_option(label="class 3")
    assert queries(tab)
    assert all("class 3" in text for text in queries(tab))
    only.select_option(label="all classes")
    for order, sign in (("worst first", 1), ("best first", -1)):
        tab.get_by_label("Order").select_option(label=order)
        scores = [float(re.search(r"MAP@R ([\d.]+)", text)[1]) for text in queries(tab)]
        assert scores == sorted(scores, reverse=sign < 0)
        assert len(set(scores)) > 1
    before = len(queries(tab))
    tab.get_by_role("button", name="Show more").press("Enter")
    assert len(queries(tab)) > before


@IN_BROWSER
def test_right_and_wrong_differ_by_text_and_frame(tab):
    tab.get_by_label("Order").select_option(label="worst first")
    frames = tab.evaluate(
        """() => [...document.querySelectorAll('#gallery-here .found > li')].flatMap((row) => {
          const label = (f) => f.querySelector('.name').textContent, query = label(row.querySelector('.query'));
          return [...row.querySelectorAll('figure:not(.query)')].map((f) => [label(f) === query,
            f.querySelector('.verdict').textContent, getComputedStyle(f.querySelector('.frame')).borderTopStyle,
            f.querySelector('img').alt.split(',')[0]]); })"""
    )
    assert {right for right, *_ in frames} == {True, False}
    kinds = {True: ["✓ right", "solid", "✓ right"], False: ["✗ wrong", "dashed", "✗ wrong"]}
    assert all(shown == kinds[right] for right, *shown in frames)


@IN_BROWSER
def test_click_on_a_confused_pair_shows_its_queries(tab):
    row = tab.locator("#confused tbody tr").first
    pair = set(row.locator("th").text_content().split(" ↔ "))
    row.get_by_role("button").click()
    shown = {name for name in TAME if any(name in text for text in queries(tab))}
    assert shown
    assert shown <= pair
    tab.get_by_role("button", name="All classes again").click()


@IN_BROWSER
def test_click_on_a_table_head_sorts(tab):
    head = tab.locator("#classes th", has_text="R@1")
    cells = tab.locator("#classes tbody td:nth-child(3)")
    for direction in ("descending", "ascending"):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == direction
        values = [float(text) for text in cells.all_text_contents()]
        assert values == sorted(values, reverse=direction == "descending")
    tab.locator("#classes select").first.select_option(label="class 1")  # the other run
    assert [float(text) for text in cells.all_text_contents()] != values
    paper = tab.locator("#compared tbody tr").all_text_contents()[-1]
    assert re.search(r"paper.*61\.5", paper, re.S)


@IN_BROWSER
def test_map_reacts_to_mouse_and_keyboard(tab):
    canvas = tab.locator("#map canvas[role=img]").first
    canvas.scroll_into_view_if_needed()
    canvas.focus()
    tab.keyboard.press("ArrowRight")
    first = tab.text_content("#spoken")
    assert re.search(r"class \d", first)
    tip = tab.locator("#map .tip")
    assert tip.is_visible()
    tab.keyboard.press("ArrowLeft")
    assert tab.text_content("#spoken") != first
    tab.keyboard.press("Escape")
    assert not tip.is_visible()
    box = canvas.bounding_box()
    for x in range(10, int(box["width"]), 12):
        tab.mouse.move(box["x"] + x, box["y"] + box["height"] / 2)
        if tip.is_visible() and tip.locator("img").count():
            break
    assert tip.locator("img").get_attribute("src").startswith("data:image/webp")
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    canvas.focus()
    tab.keyboard.press("+")
    tab.wait_for_timeout(100)
    zoomed = canvas.evaluate("canvas => canvas.toDataURL()")
    assert zoomed != before
    tab.keyboard.press("0")
    tab.get_by_label("Colour by").select_option(label="whether the nearest is right")
    names = tab.locator("#map .legend button").all_text_contents()
    assert names == ["✓ nearest is right", "✗ nearest is wrong"]


@IN_BROWSER
def test_curves_are_hidden_by_legend_and_read_by_arrow_keys(tab):
    canvas = tab.locator("#curves canvas[role=img]").first
    canvas.focus()
    tab.keyboard.press("ArrowRight")
    assert re.match(r"step \d: [\d.]+ · class [01]", tab.text_content("#spoken"))
    button = tab.locator("#curves .legend button").first
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    tab.wait_for_timeout(100)
    assert canvas.evaluate("canvas => canvas.toDataURL()") != before
    button.click()


@IN_BROWSER
def test_field_picture_is_drawn(tab):
    plots = tab.locator("#method canvas[role=img]")
    drawn = plots.evaluate_all("all => all.map((canvas) => canvas.toDataURL())")
    assert len(set(drawn)) == len(drawn) == 8  # four classes of each run


@IN_BROWSER
def test_every_control_has_an_accessible_name(tab):
    nameless = tab.evaluate(
        """() => {
          const kinds = 'button, select, img, canvas[role=img], [role=region], section';
          const named = (e) => e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') ||
            e.labels?.length || e.hasAttribute('alt') || e.textContent.trim();
          return [...document.querySelectorAll(kinds)].filter((e) => !named(e)).map((e) => e.outerHTML);
        }"""
    )
    assert nameless == []
    levels = tab.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))


@IN_BROWSER
@pytest.mark.parametrize("kind", ["no labels", "no embeddings", "no pictures"])
def test_page_omits_missing_sections(browser, tmp_path, kind):
    x = np.random.default_rng(0).normal(size=(24, 4))
    run = {
        "no labels": Run("a", embeddings=x, data=Dataset("d", x, np.zeros(24, int))),
        "no embeddings": Run("a", {"b": 1}, metrics={"R@1": 0.5}),
        "no pictures": Run("a", embeddings=x, data=Dataset("d", x, np.arange(24) % 3)),
    }[kind]
    shown = kind != "no embeddings"
    with open_page(browser, report.html_report(run, tmp_path / "r.html")) as page:
        assert page.locator("#map canvas[role=img]").count() == shown
        assert page.locator("#gallery .found > li").count() == 8 * shown
        assert page.locator("#gallery figure.wrong").count() > 0 or kind != "no pictures"


@IN_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_the_width_of_a_phone(browser, pages, scheme):
    phone = {"has_touch": True, "is_mobile": True, "color_scheme": scheme}
    with open_page(browser, pages["hostile"], 390, 844, **phone) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        canvas = page.locator("#map canvas[role=img]").first
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        for x in range(10, int(box["width"]), 12):
            page.touchscreen.tap(box["x"] + x, box["y"] + box["height"] / 2)
            if page.locator("#map .tip").is_visible():
                break
        assert page.locator("#map .tip").is_visible()
