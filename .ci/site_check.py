"""Looks at the documentation's site in a real browser: python .ci/site_check.py build/site

- No page scrolls sideways, as wide as a phone (375 px) and as a desktop.
- Each block of code has a button that copies it, without prompts; what a program prints has none.
- The search lists a how-to before the C API, for words that readers search for.
- No page logs an error.

Needs playwright and a browser that is installed: Chromium or Chrome. `--browser` names another one.
Exits 1 and lists what it found; exits 2 if there is no browser.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = (375, 1280)
QUERIES = ("timeout", "retry", "graceful stop")
#: Made by Sphinx, without code of ours.
SKIPPED = {"search.html", "genindex.html", "py-modindex.html"}

#: What sticks out of the window, and is in no box of the page that scrolls. The theme lets all of
#: the content scroll together, so that a page that is too wide does not widen its document.
STICKS_OUT = """() => {
  const scrolls = (node) => node.tagName !== "ARTICLE" && (
    ["auto", "scroll"].includes(getComputedStyle(node).overflowX) || scrolls(node.parentElement));
  return [...document.querySelectorAll("article *")]
    .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
    .filter((node) => !node.closest("svg") && !scrolls(node))
    .slice(0, 3)
    .map((node) => `${node.tagName} ${node.className}: ${node.textContent.slice(0, 30)}`);
}"""
BLOCKS = """() => [...document.querySelectorAll("article div.highlight > pre")].map((pre) => ({
  prints: pre.closest(".output") !== null,
  button: pre.parentElement.querySelector("button.copybtn") !== null,
  text: pre.textContent.trim(),
}))"""
#: Clicks each button, and keeps what would be on the clipboard.
COPIED = """async () => {
  const copied = [];
  document.addEventListener("copy", (event) => copied.push(document.getSelection().toString()
    || document.activeElement.value.slice(
      document.activeElement.selectionStart, document.activeElement.selectionEnd)), true);
  for (const button of document.querySelectorAll("article button.copybtn")) button.click();
  return copied;
}"""

SEARCH_ENDED = """() => /^Search finished|did not match/.test(
  document.querySelector("#search-results p")?.textContent || "")"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and reports nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of the site on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def pages(site: Path) -> list[str]:
    """The site's pages, the first one first."""
    found = (str(path.relative_to(site)) for path in site.rglob("*.html"))
    names = sorted(name for name in found if not name.startswith("_"))
    return ["index.html", *(name for name in names if name != "index.html")]


def without_prompts(text: str) -> str:
    """What a reader wants of a block: if there are prompts, only the lines that have one."""
    prompts = ("$ ", ">>> ", "... ")
    lines = text.splitlines()
    if not any(line.startswith(prompts) for line in lines):
        return text
    return "\n".join(
        next(line.removeprefix(each) for each in prompts if line.startswith(each))
        for line in lines
        if line.startswith(prompts)
    )


def buttons(page: Page) -> Iterator[str]:
    """Blocks without a button, outputs with one, and buttons that copy something else."""
    blocks = page.evaluate(BLOCKS)
    for block in blocks:
        if block["button"] == block["prints"]:
            what = "has a button, though it is output" if block["prints"] else "has no button"
            yield f"{what}: {block['text'][:60]!r}"
    code = [block["text"] for block in blocks if block["button"]]
    copied = page.evaluate(COPIED)
    if len(copied) != len(code):
        yield f"{len(code)} blocks of code, but {len(copied)} of them were copied"
        return
    for text, copy in zip(code, copied, strict=True):
        if copy.strip() != without_prompts(text):
            yield f"copies {copy[:60]!r} of {text[:60]!r}"


def searched(page: Page, address: str, query: str) -> Iterator[str]:
    """What is wrong with the results for some words."""
    page.goto(f"{address}search.html?q={query.replace(' ', '+')}")
    page.wait_for_function(SEARCH_ENDED)
    links = page.eval_on_selector_all(
        "#search-results li > a", "(all) => all.map((each) => each.getAttribute('href'))"
    )
    how_to = next((n for n, link in enumerate(links) if "howto/" in link), None)
    native = next((n for n, link in enumerate(links) if "reference/c.html" in link), len(links))
    if how_to is None or how_to > native:
        yield f"search for {query!r}: no how-to before the C API in {links[:5]}"


def too_wide(page: Page) -> Iterator[str]:
    """What makes a page scroll sideways, with each of its tabs open in turn."""
    labels = page.query_selector_all(".sd-tab-set > label") or [None]
    for label in labels:
        if label:
            label.click()
        wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        outside = page.evaluate(STICKS_OUT)
        if wide > 0 or outside:
            yield f"{max(wide, 0)} px too wide, and outside of the window: {outside}"


def found(browser: Browser, address: str, site: Path) -> Iterator[str]:
    """All that is wrong."""
    errors: list[str] = []
    for width in WIDTHS:
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.on("pageerror", lambda error: errors.append(str(error)))
        for name in pages(site):
            page.goto(address + name, wait_until="load")
            yield from (f"{name} at {width} px: {each}" for each in too_wide(page))
            if width == WIDTHS[-1] and name not in SKIPPED:
                yield from (f"{name}: {each}" for each in buttons(page))
            yield from (f"{name}: {each}" for each in errors)
            errors.clear()
        for query in QUERIES:
            yield from searched(page, address, query)
        page.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path, help="where Sphinx has built it")
    parser.add_argument("--browser", help="the browser's program")
    options = parser.parse_args()
    program = options.browser or next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        print("there is no browser", file=sys.stderr)
        return 2
    with served(options.site) as address, sync_playwright() as play:
        # Without a sandbox, since a CI often runs as root; the pages are ours.
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        faults = list(found(browser, address, options.site))
        browser.close()
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(pages(options.site))} pages looked at, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
