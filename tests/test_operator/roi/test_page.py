"""The page in a real browser: the numbers of Python, controls that work, nothing loaded, readable for everyone."""

import json
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from forebay_operator.roi.calculate import calculate
from forebay_operator.roi.inputs import Inputs
from forebay_operator.roi.page import page, page_data
from forebay_operator.roi.report import Report
from forebay_operator.roi.subject import DEFAULT_MODEL, accelerator, subject

FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-sandbox",  # root, in a container, and a page of our own
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

START = Inputs(requests_per_day=5_000_000, gpus=32, price=4.0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, with a fresh profile."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium: hack/chromium.sh installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page, opened from a file; whatever it loads or complains about fails the test."""
    file = tmp_path / "roi.html"
    file.write_text(written(DEFAULT_MODEL, START))
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(file.as_uri())
    yield opened
    context.close()
    assert requests == [file.as_uri()]
    assert complaints == []


def report(model: str, inputs: Inputs, name: str = "h100-80gb") -> Report:
    about, profile = subject(model, inputs), accelerator(name)
    return Report(about.name, profile.name, inputs, calculate(inputs, about.on(profile)))


@cache
def written(model: str, inputs: Inputs) -> str:
    return page(subject(model, inputs), report(model, inputs))


def test_the_page_calculates_what_python_calculates(shown: Page) -> None:
    """400 situations on models of every kind, every number of every row."""
    chance = random.Random(4)
    for model, name in (
        (DEFAULT_MODEL, "h100-80gb"),
        ("meta-llama/Llama-3.3-70B-Instruct", "a100-80gb"),
        ("Qwen/Qwen3-30B-A3B", "l40s-48gb"),
        ("openai/gpt-oss-120b", "h200-141gb"),
    ):
        about = subject(model, START)
        data = page_data(about, report(model, START, name))
        variants = next(entry["variants"] for entry in data["accelerators"] if entry["name"] == name)
        situations = [
            Inputs(
                requests_per_day=chance.choice([0, 1, chance.randint(1, 10**9), 10 ** chance.uniform(0, 14)]),
                prompt_tokens=chance.randint(1, 6000),
                output_tokens=chance.randint(1, 2000),
                utilization=chance.uniform(1, 100),
                price=chance.uniform(0, 20),
                gpus=chance.choice([None, chance.randint(1, 10_000)]),
                target_utilization=chance.uniform(1, 100),
                prefix_hit=chance.uniform(0, 99),
                acceptance=chance.uniform(0, 99),
            )
            for _ in range(100)
        ]
        calculated = shown.evaluate(
            "([constants, optimizations, variants, situations]) => situations.map("
            "(inputs) => forebayRoi.calculate(constants, optimizations, inputs, variants))",
            json.loads(
                json.dumps(
                    [data["constants"], data["optimizations"], variants, [asdict(inputs) for inputs in situations]]
                )
            ),
        )
        for inputs, result in zip(situations, calculated, strict=True):
            expected = asdict(calculate(inputs, about.on(accelerator(name))))
            compare(result, json.loads(json.dumps(expected)))


def compare(page_value: Any, python_value: Any) -> None:
    """Words and whole numbers equal, others but for rounding."""
    if isinstance(python_value, dict):
        assert page_value.keys() == python_value.keys()
        for key, value in python_value.items():
            compare(page_value[key], value)
    elif isinstance(python_value, list):
        assert len(page_value) == len(python_value)
        for one, other in zip(page_value, python_value, strict=True):
            compare(one, other)
    elif isinstance(python_value, float):
        assert page_value == pytest.approx(python_value, rel=1e-9, abs=1e-6)
    else:
        assert page_value == python_value


def test_it_begins_with_the_numbers_of_the_command(shown: Page) -> None:
    rows = report(DEFAULT_MODEL, START).result.rows
    expect(shown.locator("#today-cost")).to_contain_text("$93,440")
    expect(shown.locator("#after-cost")).to_contain_text(f"${rows[-1].cost:,.0f}")
    expect(shown.locator("#saving")).to_contain_text(f"${rows[-1].saving:,.0f}")
    assert shown.locator("#rows tr").count() == len(rows)
    for row in rows[1:]:
        cells = shown.locator(f"tr[data-key={row.key}] td")
        expect(cells.nth(1)).to_have_text(f"{row.gpus:,}")
        expect(cells.nth(2)).to_have_text(f"${row.cost:,.0f}")
        expect(cells.nth(4)).to_have_text(f"${row.saving:,.0f}")


def test_a_field_changes_the_result_and_its_slider(shown: Page) -> None:
    position = shown.locator("#price-slider").input_value()
    shown.get_by_label("Price of a GPU").first.fill("8")
    expect(shown.locator("#today-cost")).to_contain_text("$186,880")
    assert shown.locator("#price-slider").input_value() != position


def test_a_slider_is_moved_by_the_keyboard_and_says_its_value(shown: Page) -> None:
    slider = shown.locator("#utilization-slider")
    slider.focus()
    shown.keyboard.press("End")
    assert shown.locator("#utilization").input_value() == "100"
    assert slider.get_attribute("aria-valuetext") == "100 percent of the time"
    rows = report(DEFAULT_MODEL, replace(START, utilization=100)).result.rows
    expect(shown.locator("#after-cost")).to_contain_text(f"${rows[-1].cost:,.0f}")


def test_another_gpu_brings_its_price_and_its_speed(shown: Page) -> None:
    shown.get_by_label("Kind of GPU").select_option("l4-24gb")
    assert shown.locator("#price").input_value() == "0.7"
    rows = report(DEFAULT_MODEL, replace(START, price=0.7), "l4-24gb").result.rows
    expect(shown.locator("tr[data-key=speculation] td").nth(1)).to_have_text(f"{rows[-1].gpus:,}")


def test_wrong_values_are_said_and_the_last_result_stays(shown: Page) -> None:
    before = shown.locator("#after-cost").inner_text()
    field = shown.locator("#utilization")
    for value, said in (("0", "From 1 to 100."), ("", "A number is needed here.")):
        field.fill(value)
        assert field.get_attribute("aria-invalid") == "true"
        expect(shown.locator("#utilization-error")).to_have_text(said)
        assert shown.locator("#after-cost").inner_text() == before
    shown.locator("#gpus").fill("2.5")
    expect(shown.locator("#gpus-error")).to_have_text("A whole number, please.")
    shown.locator("#prompt_tokens").fill("8191")
    shown.locator("#gpus").fill("2")
    field.fill("20")
    expect(shown.locator("#output_tokens-error")).to_contain_text("at most 8,192 tokens")
    shown.get_by_role("button", name="Back to the first numbers").click()
    assert shown.locator("#after-cost").inner_text() == before
    assert shown.locator("[aria-invalid=true]").count() == 0


def test_a_load_beyond_todays_gpus_is_not_called_a_saving(shown: Page) -> None:
    shown.locator("#requests_per_day").fill("100000000000")
    expect(shown.locator("#saving-title")).to_have_text("You need more")
    expect(shown.locator("#check")).to_contain_text("more than today's 32 GPUs")


def test_no_requests_and_no_price_are_shown_without_nonsense(shown: Page) -> None:
    shown.locator("#requests_per_day").fill("0")
    shown.locator("#price").fill("0")
    text = shown.locator("#results").inner_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    expect(shown.locator("#check")).to_contain_text("Without requests")


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_nothing_is_wider_than_the_screen(shown: Page, width: int) -> None:
    shown.set_viewport_size({"width": width, "height": 800})
    # the page forbids eval, with which wait_for_function would look a second time
    for _ in range(100):
        if shown.evaluate("document.querySelector('#chart svg').viewBox.baseVal.width <= window.innerWidth"):
            break
        shown.wait_for_timeout(20)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    labels = shown.evaluate(
        "(() => { const right = document.querySelector('#chart').getBoundingClientRect().right + 1;"
        "return [...document.querySelectorAll('#chart text')].filter("
        "(text) => text.getBoundingClientRect().right > right).map((text) => text.textContent); })()"
    )
    assert labels == []


def test_every_control_has_a_name_and_can_be_reached_with_the_keyboard(shown: Page) -> None:
    unnamed = shown.evaluate(
        "[...document.querySelectorAll('input, select')].filter((control) => "
        "!control.getAttribute('aria-label') && !(control.labels && control.labels.length)).map((c) => c.id)"
    )
    assert unnamed == []
    wanted = set(shown.evaluate("[...document.querySelectorAll('input, select, button')].map((c) => c.id || c.type)"))
    reached = set()
    for _ in range(len(wanted) + 5):
        shown.keyboard.press("Tab")
        reached.add(shown.evaluate("document.activeElement.id || document.activeElement.type"))
    assert wanted <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(shown: Page, scheme: Any) -> None:
    """WCAG 2.2, 1.4.3: 4.5 to 1 for text; 1.4.11: 3 to 1 for bars."""
    shown.emulate_media(color_scheme=scheme)
    colours = shown.evaluate(
        "() => [...document.querySelectorAll('h1, h2, p, th, td, th span, label, .unit, li, .source, legend, button,"
        " input[type=number], select, #chart text, #chart rect')]"
        ".filter((e) => e.getClientRects().length && (e.textContent || e.value || e.tagName === 'rect')).map((e) => {"
        "  const style = getComputedStyle(e); const isBar = e.tagName === 'rect';"
        "  let behind = isBar || e.tagName === 'text' ? e.closest('.card') : e;"
        "  while (behind && getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)')"
        "    behind = behind.parentElement;"
        "  const inSvg = isBar || e.tagName === 'text';"
        "  const front = !inSvg ? style.color : style.fill === 'none' ? style.stroke : style.fill;"
        "  return [e.id || e.className.baseVal || e.className || e.tagName, isBar ? 3 : 4.5, front,"
        "    getComputedStyle(behind).backgroundColor]; })"
    )
    assert len(colours) > 100
    faint = [entry for entry in colours if contrast(entry[2], entry[3]) < entry[1]]
    assert faint == []


def contrast(front: str, back: str) -> float:
    """Ratio of the relative luminances of two `rgb(...)` colours, as WCAG defines it."""

    def luminance(colour: str) -> float:
        channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(front), luminance(back)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


class _Links(HTMLParser):
    """Collects everything that a browser could load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("src", "srcset", "data", "action", "poster") or (name == "href" and value != "#results"):
                self.found.append(f"{tag} {name}={value}")


def test_the_file_names_nothing_to_load() -> None:
    text = written(DEFAULT_MODEL, START)
    links = _Links()
    links.feed(text)
    assert links.found == []
    assert re.findall(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert "default-src 'none'" in text


def test_the_name_of_a_model_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "vocab_size": 256,
        "max_position_embeddings": 8192,
    }
    folder = tmp_path / "<script>alert(1)<script>{{data}}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    text = written(str(folder), START)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;script&gt;{{data}}" in text
    assert text.count('"model_len"') == 1


def test_what_the_model_does_not_fit_on_cannot_be_chosen() -> None:
    model = "meta-llama/Llama-3.3-70B-Instruct"
    names = [entry["name"] for entry in page_data(subject(model, START), report(model, START))["accelerators"]]
    assert "h100-80gb" in names
    assert "cpu" not in names
    assert "b200-180gb" in names
