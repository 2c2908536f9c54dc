"""In a browser, the page shows no error and nothing overflows; slider, filters, sorting and download do as they say.

These tests need a Chromium, and the one of accessibility axe-core: set AXE_JS to the path of axe.min.js, or run
npm install axe-core.
"""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from exitpoll import Policy, Trace
from exitpoll.report.html import build_report, write_report
from tests.report.browser import AXE, CHROMIUM, start
from tests.report.samples import NAMES, benchmark, example, report
from tests.report.test_html import data_of
from tests.samples import random_trace

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

LOOKS = {"wide": {}, "phone": {"width": 375, "height": 800}, "dark": {"dark": True}}
ROWS = "[...document.querySelectorAll('#table tbody tr')]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with start(tmp_path_factory.mktemp("profile")) as started:
        yield started


def long_names():
    """A report with many exits, and with names that do not fit a phone."""
    trace = random_trace(0, texts=80, exits=24, classes=12)
    names = [f"class-number-{number}-" + "of-a-very-long-name" * 3 for number in range(12)]
    return build_report("m" * 120, names, Policy("max_prob", 0.7), trace, ["w" * 300] * 80, benchmark=benchmark())


REPORTS = {
    "classes": lambda: report(timed=benchmark()),
    "label sets": lambda: report("multi_label_classification"),
    "values": lambda: report("regression"),
    "no labels": lambda: report(labelled=False),
    "values without labels": lambda: report("regression", labelled=False),
    "never early": lambda: report(policy=Policy("votes", None)),
    "no slider": lambda: report(policy=Policy("votes", None, max_depth=2)),
    "long names": long_names,
}


@pytest.fixture(scope="module", params=REPORTS)
def any_page(request, tmp_path_factory):
    return write_report(REPORTS[request.param](), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(report(timed=benchmark()), tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("look", LOOKS)
def test_no_error_no_request_and_nothing_overflows(browser, any_page, look):
    browser.open(any_page, **LOOKS[look])
    assert browser.console == []
    assert browser.requests == [f"file://{any_page}"]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    outside = """[...document.querySelectorAll('main *')].filter((node) =>
        !node.closest('.wide, pre, svg, td, th, .hidden') && node.getBoundingClientRect().right > innerWidth + 1
    ).map((node) => node.outerHTML.slice(0, 80))"""
    assert browser.run(outside) == []
    assert browser.run("document.querySelectorAll('figure svg').length") > 2


@pytest.mark.skipif(not AXE.is_file(), reason="there is no axe-core")
@pytest.mark.parametrize("look", LOOKS)
def test_accessibility(browser, any_page, look):
    browser.open(any_page, **LOOKS[look])
    browser.run("document.querySelector('#table button[aria-expanded]').click()")
    browser.run(AXE.read_text(encoding="utf-8"))
    violations = browser.run("axe.run().then((result) => JSON.stringify(result.violations))")
    assert [
        (rule["id"], node["html"][:200], node["failureSummary"])
        for rule in json.loads(violations)
        for node in rule["nodes"]
    ] == []


class TestSlider:
    def shown(self, browser):
        ids = ("slider-threshold", "read-score", "read-loss", "read-speedup", "read-differs")
        return {name: browser.run(f"document.getElementById('{name}').textContent") for name in ids}

    def wanted(self, page, point):
        data = data_of(page)
        slider, full = data["slider"], data["curves"]["full"]
        share, low, high = (f"{100 * value:.1f}" for value in slider["differs"][point])
        return {
            "slider-threshold": slider["thresholds"][point],
            "read-score": f"{100 * slider['score'][point]:.1f} %",
            "read-loss": f"{100 * (full - slider['score'][point]):.1f} points".replace("-", "−").replace("−0.0", "0.0"),
            "read-speedup": f"{slider['speedup'][point]:.2f} ×",
            "read-differs": f"{share} % ({low} to {high})",
        }

    def test_it_starts_at_the_policy(self, browser, page):
        browser.open(page)
        own = data_of(page)["slider"]["own"]
        assert self.shown(browser) == self.wanted(page, own)
        assert browser.run("document.getElementById('slider-reset').disabled")

    def test_keys_move_it_and_the_button_resets_it(self, browser, page):
        browser.open(page)
        own, last = data_of(page)["slider"]["own"], len(data_of(page)["slider"]["score"]) - 1
        point = "[...document.querySelectorAll('#curves .dot.policy')].map((dot) => dot.getAttribute('cx'))"
        bars = "document.querySelector('#depths svg').innerHTML"
        before = browser.run(point), browser.run(bars)
        browser.run("document.getElementById('slider').focus()")
        browser.press("ArrowRight")
        assert self.shown(browser) == self.wanted(page, own + 1)
        browser.press("End")
        assert self.shown(browser) == self.wanted(page, last)
        assert browser.run("document.getElementById('slider').getAttribute('aria-valuetext')").startswith("threshold ")
        assert browser.run(point) != before[0]
        assert browser.run(bars) != before[1]
        browser.run("document.getElementById('slider-reset').click()")
        assert self.shown(browser) == self.wanted(page, own)
        assert (browser.run(point), browser.run(bars)) == before

    def test_a_drag_in_the_figure_moves_it(self, browser, page):
        browser.open(page)
        left, right, y = browser.run("""(() => {
            document.getElementById('curves').scrollIntoView({ behavior: 'instant' });
            const box = document.getElementById('curves').getBoundingClientRect();
            return [box.left + 60, box.right - 5, box.top + 100];
        })()""")
        browser.drag(left, right, y)
        assert self.shown(browser)["read-speedup"] == "4.00 ×"

    def test_a_grey_line_can_be_picked_out(self, browser, page):
        browser.open(page)
        grey = "document.querySelectorAll('#curves path.rest').length"
        before = browser.run(grey)
        browser.run("document.querySelector('.chip').click()")
        assert browser.run(grey) == before - 1
        assert browser.run("document.querySelector('.chip').getAttribute('aria-pressed')") == "true"
        assert browser.run("document.querySelectorAll('#curves path.other0').length") == 1


class TestTexts:
    def count(self, browser):
        return browser.run("document.getElementById('matches').textContent")

    def column(self, browser, key):
        return browser.run(f"{ROWS}.map((row) => row.querySelector('.col-{key}').textContent)")

    def choose(self, browser, name, value):
        browser.run(f"""(() => {{
            const control = document.getElementById('controls').elements['{name}'];
            control.value = '{value}';
            control.dispatchEvent(new Event('input', {{ bubbles: true }}));
        }})()""")

    def test_texts_are_shown_as_they_are(self, browser, page):
        browser.open(page)
        assert self.count(browser) == "120 of 120 texts"
        assert len(self.column(browser, "text")) == 50
        assert self.column(browser, "text")[0].startswith("</script><script>alert(1)")
        assert browser.run("document.querySelectorAll('#table script, #table i:not(.strip i)').length") == 0

    def test_pages(self, browser, page):
        browser.open(page)
        browser.run("document.getElementById('next').click()")
        browser.run("document.getElementById('next').click()")
        assert self.column(browser, "number") == [str(number) for number in range(101, 121)]
        assert browser.run("document.getElementById('next').disabled")

    @pytest.mark.parametrize(
        "key", ["number", "text", "label", "answer", "probability", "layer", "full_model", "exits"]
    )
    def test_every_column_sorts(self, browser, page, key):
        browser.open(page)
        title = f"document.querySelector('#table th.col-{key}')"
        orders = {}
        while len(orders) < 2:
            browser.run(f"{title}.querySelector('button').click()")
            orders[browser.run(f"{title}.getAttribute('aria-sort')")] = browser.run("state.rows")
        value = f"columns.find((column) => column.key === '{key}').value"
        values = browser.run(f"{orders['ascending']}.map({value})")
        if key in ("number", "probability", "layer", "exits"):
            assert values == sorted(values)
        falling = browser.run(f"{orders['descending']}.map({value})")
        assert falling == values[::-1]

    def test_filters(self, browser, page):
        table = data_of(page)["texts"]
        rows = list(zip(table["gold"], table["answer"], table["full"], table["exit"], table["text"], strict=True))
        browser.open(page)
        for name, value, keeps in [
            ("show", "wrong", lambda gold, answer, full, exit_number, text: gold != answer),
            ("show", "differs", lambda gold, answer, full, exit_number, text: full != answer),
            ("show", "lost", lambda gold, answer, full, exit_number, text: full == gold != answer),
            ("layer", "2", lambda gold, answer, full, exit_number, text: exit_number == 1),
            ("label", "1", lambda gold, answer, full, exit_number, text: gold == 1),
            ("answer", "0", lambda gold, answer, full, exit_number, text: answer == 0),
            ("search", "SCRIPT", lambda gold, answer, full, exit_number, text: "script" in text),
        ]:
            self.choose(browser, name, value)
            assert self.count(browser) == f"{sum(keeps(*row) for row in rows)} of 120 texts"
            assert browser.run("location.hash") == f"#{name}={value}"
            browser.run("document.getElementById('clear').click()")
            assert self.count(browser) == "120 of 120 texts"
        assert browser.console == []

    def test_an_address_leads_to_texts(self, browser, page):
        table = data_of(page)["texts"]
        pairs = list(zip(table["gold"], table["answer"], strict=True))
        browser.open(page, fragment="#label=0&answer=1")
        assert self.count(browser) == f"{pairs.count((0, 1))} of 120 texts"
        browser.run("document.querySelector('a[href=\"#label=1&answer=0\"]').click()")
        browser.run("new Promise((done) => setTimeout(done, 100))")
        assert self.count(browser) == f"{pairs.count((1, 0))} of 120 texts"
        browser.open(page, fragment="#label=99&show=nonsense")
        assert self.count(browser) == "120 of 120 texts"
        assert browser.console == []

    def test_a_row_opens(self, browser, page):
        browser.open(page)
        browser.run("document.querySelector('#table button[aria-expanded]').click()")
        table = data_of(page)["texts"]
        detail = browser.run("document.querySelector('.detail').textContent")
        assert table["text"][0] in detail
        assert all(f"{confidence:.3f}" in detail for confidence in table["confidence"][0])
        browser.run("document.querySelector('#table button[aria-expanded]').click()")
        assert browser.run("document.querySelectorAll('.detail').length") == 0

    def test_the_download_holds_the_filtered_rows(self, browser, page):
        table = data_of(page)["texts"]
        browser.open(page, fragment="#show=wrong")
        lines = list(csv.DictReader(browser.run("csvOf(state.rows)").splitlines()))
        wrong = [row for row in range(120) if table["gold"][row] != table["answer"][row]]
        assert [int(line["number"]) for line in lines] == [row + 1 for row in wrong]
        first, row = lines[0], wrong[0]
        assert first["text"] == table["text"][row]
        assert (first["label"], first["answer"]) == (NAMES[table["gold"][row]], NAMES[table["answer"][row]])
        assert float(first["probability"]) == table["probability"][row]
        assert [first[f"answer_{layer}"] for layer in (1, 2, 4)] == [NAMES[head] for head in table["heads"][row]]
        assert [float(first[f"probability_{layer}"]) for layer in (1, 2, 4)] == table["confidence"][row]

    def test_quotes_and_line_breaks_survive_the_download(self, browser, tmp_path):
        trace, given = example(texts=8)
        hostile = ['"quoted", and\nbroken', *given[1:]]
        page = write_report(build_report("x", NAMES, Policy("max_prob", 0.9), trace, hostile), tmp_path)
        browser.open(page)
        lines = list(csv.DictReader(browser.run("csvOf(state.rows)").split("\r\n")))
        assert lines[0]["text"].replace("\n", "") == hostile[0].replace("\n", "")
        assert len(lines) == 8

    def test_thousands_of_texts_stay_fast(self, browser, tmp_path):
        generator = np.random.default_rng(0)
        trace = Trace(generator.normal(size=(5000, 12, 6)), generator.integers(6, size=5000))
        names = [f"class {number}" for number in range(6)]
        given = build_report("x", names, Policy("max_prob", 0.6), trace, ["a text of some words"] * 5000)
        page = write_report(given, tmp_path)
        assert page.stat().st_size < 2_000_000
        browser.open(page)
        before = browser.run("performance.now()")
        self.choose(browser, "search", "some")
        browser.run("document.querySelector('#table th.col-probability button').click()")
        assert browser.run("performance.now()") - before < 1500
        assert self.count(browser) == "5000 of 5000 texts"
