"""Links between pages lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.bed.parts import ROOT

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(rf"{FENCED.pattern}|`[^`\n]*`", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r'<a id="([\w-]+)"></a>')
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


def _pages() -> list[Path]:
    """Every page that git knows or would add."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "*.md"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\n") if name and (ROOT / name).is_file()]


def _anchors(page: Path) -> set[str]:
    """Headings as they are linked to (small letters, no punctuation, dashes for spaces), and named places."""
    text = FENCED.sub("", page.read_text())
    headings = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)
    }
    return headings | set(NAMED.findall(text))


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in _pages()])
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for target in LINK.findall(CODE.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if ":" in path:
            continue  # on the web, which a test must not need
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in _anchors(found)):
            broken.append(target)
    assert broken == []


def test_every_page_of_the_documentation_is_within_reach_of_the_readme() -> None:
    """Decisions are numbered files of one folder, which is within reach."""
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        seen.add(page)
        for target in LINK.findall(page.read_text()):
            found = (page.parent / target.partition("#")[0]).resolve()
            if found.suffix == ".md" and found.is_file() and found not in seen:
                ahead.append(found)
    lost = {page for page in _pages() if (ROOT / "docs") in page.parents} - seen
    lost -= set((ROOT / "docs/decisions").iterdir())
    assert sorted(str(page.relative_to(ROOT)) for page in lost) == []
