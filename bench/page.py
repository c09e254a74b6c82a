"""Measure the page in a real browser: its size, its first picture, its charts, and how fast it shows a change.

    .venv/bin/python bench/page.py [--rounds N]

Needs Chromium (``scripts/bed browser``). All figures come from one run on one machine; the ratios are to an empty page
of the same browser, or to the daemon's own answer, measured in turns.
"""

from __future__ import annotations

import argparse
import gzip
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from common import BIN, Bench, daemon, ms, percentile, print_conditions
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from gpushared.client import Client
from gpushared.web.assets import Assets

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--disable-background-networking", "--disable-component-update", "--disable-gpu", "--disable-quic"]
LINK = re.compile(r"(http://127\.0\.0\.1:\d+\S*/)login#(\S+)")
LEASES = 24
CHARTS = 16
POINTS = 3600
ASSET_BYTES, GZIPPED_BYTES = 130_000, 45_000
PICTURE_SECONDS, CHARTS_SECONDS, CHANGE_SECONDS = 0.2, 0.06, 1.0
PAINTED = """
() => new Promise((done) => {
  const look = () => document.querySelector("main h1") && document.querySelector("main table")
    ? requestAnimationFrame(() => done(performance.now())) : requestAnimationFrame(look);
  look();
})
"""
LOADED = """
() => {
  const assets = performance.getEntriesByType("resource").filter((one) => one.name.includes("/assets/"));
  return [assets.length, assets.reduce((sum, one) => sum + one.encodedBodySize, 0)];
}
"""
DRAWN = """
async ([count, points]) => {
  const source = document.querySelector("script[type=module]").src;
  const {plot} = await import(new URL("plot.js", source).href);
  const times = Array.from({length: points}, (_, at) => 1.7e9 + at);
  const series = ["held", "used", "peak"].map((tone, line) =>
    ({name: tone, tone, values: times.map((_, at) => 1 + Math.sin(at / 100 / (line + 1)))}));
  const place = document.body.appendChild(document.createElement("div"));
  const began = performance.now();
  for (let at = 0; at < count; at++) {
    const chart = {form: "lines", times, series, unit: 1, write: String, writeTime: String};
    plot(place.appendChild(document.createElement("div")), chart);
  }
  await new Promise(requestAnimationFrame);
  place.getBoundingClientRect();
  const seconds = (performance.now() - began) / 1000;
  place.remove();
  return seconds;
}
"""


@contextmanager
def forwarding(bench: Bench) -> Iterator[tuple[str, str]]:
    """Run ``gpushare web``, and give the page's address and a code."""
    words = [BIN / "gpushare", "web", "--no-browser"]
    with subprocess.Popen(
        words, env=bench.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as web:
        assert web.stdout is not None
        found = LINK.search(web.stdout.readline())
        assert found is not None
        try:
            yield found[1], found[2]
        finally:
            web.terminate()


def show_size() -> None:
    files = Assets().files
    raw = sum(len(one.body) for one in files.values())
    packed = sum(len(one.gzipped) for one in files.values())
    whole = len(gzip.compress(b"".join(one.body for one in files.values()), 9))
    print(f"assets: {len(files)} files, {raw} bytes of {ASSET_BYTES}, gzipped {packed} of {GZIPPED_BYTES}")
    print(f"  all in one stream, gzipped  {whole}")


def measure_picture(browser: Browser, context: BrowserContext, address: str, rounds: int) -> None:
    """From the request of the address to the first frame with the machine's table, in turns with an empty page."""
    warm, empty = [], []
    cold = []
    for _ in range(rounds):
        page = context.new_page()
        page.goto(address)
        warm.append(page.evaluate(PAINTED) / 1000)
        page.close()
        page = context.new_page()
        page.goto("about:blank")
        began = page.evaluate("performance.now()")
        empty.append(
            (page.evaluate("new Promise(requestAnimationFrame).then(() => performance.now())") - began) / 1000
        )
        page.close()
        # A context of its own has the cookie, but nothing in its cache.
        fresh = browser.new_context(storage_state=context.storage_state())
        page = fresh.new_page()
        page.goto(address)
        cold.append(page.evaluate(PAINTED) / 1000)
        loaded = page.evaluate(LOADED)
        fresh.close()
    print(f"first useful picture, {LEASES} leases, {rounds} times (aim {ms(PICTURE_SECONDS)})")
    for name, values in (
        ("cached assets", warm),
        ("nothing cached", cold),
        ("a frame of an empty page", empty),
    ):
        print(
            f"  {name:24} min {ms(min(values))}  median {ms(median(values))}  p90 {ms(percentile(values, 90))}"
        )
    print(f"  the first page loads     {loaded[0]} files, {loaded[1]} bytes gzipped")
    print(f"  ratio cached / nothing cached  {median(warm) / median(cold):.2f}")


def measure_charts(page: Page, rounds: int) -> None:
    values = [page.evaluate(DRAWN, [CHARTS, POINTS]) for _ in range(rounds)]
    one = [page.evaluate(DRAWN, [1, POINTS]) for _ in range(rounds)]
    print(f"{CHARTS} charts of three lines with {POINTS} points, {rounds} times (aim {ms(CHARTS_SECONDS)})")
    print(f"  min {ms(min(values))}  median {ms(median(values))}  p90 {ms(percentile(values, 90))}")
    print(f"  ratio to one chart       {median(values) / median(one):.1f}")


def measure_change(page: Page, client: Client, rounds: int) -> None:
    """From before the call that asks for a lease to the frame that has it, beside the call alone."""
    shown, called = [], []
    for number in range(rounds):
        began = time.perf_counter()
        lease = client.request(request_id=f"change-{number}", gpu="0.01")
        called.append(time.perf_counter() - began)
        page.wait_for_function(
            "(id) => document.querySelector('main').textContent.includes(id)", arg=lease.id
        )
        shown.append(time.perf_counter() - began)
        client.release(lease.id)
        page.wait_for_function(
            "(id) => !document.querySelector('main').textContent.includes(id)", arg=lease.id
        )
    print(f"a change, until it is on the page, {rounds} times (aim p95 {ms(CHANGE_SECONDS)})")
    for name, values in (("on the page", shown), ("the call alone", called)):
        print(f"  {name:24} p50 {ms(percentile(values, 50))}  p95 {ms(percentile(values, 95))}")
    print(f"  ratio of medians         {median(shown) / median(called):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print_conditions()
    show_size()
    with daemon() as bench, forwarding(bench) as (address, code), sync_playwright() as playwright:
        client = Client(f"unix://{bench.socket}")
        for number in range(LEASES):
            client.request(request_id=f"bench-{number}", gpu="0.1")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{address}login#{code}")
        page.evaluate(PAINTED)
        measure_picture(browser, context, address, rounds)
        page.goto(address)
        measure_change(page, client, rounds)
        measure_charts(page, rounds)
        browser.close()


if __name__ == "__main__":
    main()
