"""The page's files are served under a path that names their contents, and nothing beside them is."""

from __future__ import annotations

import gzip
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.web.assets import FOLDER, Assets, without_comments
from gpushared.web.browser_server import accepts_gzip
from tests.web.raw_browser import EchoSite, NewSite, request

SCRIPT = b"export const it = 1;\n" * 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A page of few files, with one beside it that is secret."""
    folder = tmp_path / "assets"
    (folder / "pages").mkdir(parents=True)
    (folder / "index.html").write_text('<base href="__BASE__"><script src="assets/__DIGEST__/app.js">')
    (folder / "app.js").write_bytes(SCRIPT)
    (folder / "pages" / "queue.js").write_bytes(b"queue")
    (folder / "notes.py").write_bytes(b"of another type")
    (tmp_path / "secret.js").write_bytes(b"secret")
    return folder


@pytest.fixture
def site(new_site: NewSite, folder: Path) -> EchoSite:
    site = new_site()
    site.site = replace(site.site, assets=Assets(folder))
    return site


def at(site: EchoSite, name: str) -> str:
    return f"/assets/{site.site.assets.digest}/{name}"


@pytest.mark.parametrize(
    "path", ["/", "/queue", "/lease/l-7f3k", "/job/k7f3k2m9qawp4", "/login", "/submit", "/queue?user=ada"]
)
async def test_each_address_of_the_page_is_the_one_shell(site: EchoSite, path: str) -> None:
    answer = await site.ask(request("GET", path))
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    digest = site.site.assets.digest
    assert answer.body.decode() == f'<base href="/"><script src="assets/{digest}/app.js">'


async def test_the_shell_knows_its_base_path(site: EchoSite) -> None:
    site.base = "/a/b/"
    assert (await site.ask(request("GET", "/a/b/queue"))).body.startswith(b'<base href="/a/b/">')
    moved = await site.ask(request("GET", "/a/b"))
    assert (moved.status, moved.headers["location"]) == (308, "/a/b/")
    assert [(await site.ask(request("GET", path))).status for path in ("/", "/queue", "/a/", "/a/b/c/")] == [
        404
    ] * 4


async def test_a_file_may_be_kept_for_ever(site: EchoSite) -> None:
    for name, body in (("app.js", SCRIPT), ("pages/queue.js", b"queue")):
        answer = await site.ask(request("GET", at(site, name)))
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("accepted", "is_gzipped"),
    [
        ("gzip, deflate, br", True),
        ("GZIP", True),
        ("gzip;q=0.5", True),
        ("br, gzip ; q=1", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("identity", False),
        ("xgzip", False),
        ("", False),
    ],
)
async def test_a_file_is_compressed_for_whoever_takes_that(
    site: EchoSite, accepted: str, is_gzipped: bool
) -> None:
    assert accepts_gzip(accepted.encode()) is is_gzipped
    answer = await site.ask(request("GET", at(site, "app.js"), Accept_Encoding=accepted))
    assert answer.headers.get("content-encoding") == ("gzip" if is_gzipped else None)
    assert answer.headers["vary"] == "Accept-Encoding"
    assert (gzip.decompress(answer.body) if is_gzipped else answer.body) == SCRIPT


async def test_a_head_has_the_length_and_no_body(site: EchoSite) -> None:
    async with site.connected() as browser:
        answer = await browser.ask(request("HEAD", at(site, "app.js")))
        assert answer.headers["content-length"] == str(len(SCRIPT))
        assert (await browser.ask(request("GET", at(site, "app.js")))).body == SCRIPT


@pytest.mark.parametrize(
    "name",
    [
        "none.js",
        "index.html",
        "notes.py",
        "pages",
        "pages/",
        "pages//queue.js",
        "./app.js",
        "../app.js",
        "../secret.js",
        "pages/../app.js",
        "..%2fsecret.js",
        "%2e%2e/secret.js",
        "pages\\queue.js",
        "app.js/",
        "app.js%00",
        "/etc/passwd",
        "",
    ],
)
async def test_nothing_else_is_below_the_files_path(site: EchoSite, name: str) -> None:
    assert (await site.ask(request("GET", at(site, name)))).status == 404


@pytest.mark.parametrize("digest", ["", "0" * 16, "..", "x"])
async def test_a_file_of_another_version_is_not_there(site: EchoSite, digest: str) -> None:
    assert (await site.ask(request("GET", f"/assets/{digest}/app.js"))).status == 404


def test_the_path_changes_with_any_file_and_with_nothing_else(folder: Path) -> None:
    before = Assets(folder).digest
    (folder / "notes.py").write_bytes(b"another text")
    assert Assets(folder).digest == before
    (folder / "pages" / "queue.js").write_bytes(b"queue 2")
    changed = Assets(folder).digest
    (folder / "pages" / "queue.js").rename(folder / "pages" / "other.js")
    assert len({before, changed, Assets(folder).digest}) == 3


def test_the_page_that_is_shipped_has_its_shell_and_its_script() -> None:
    assets = Assets()
    assert f"assets/{assets.digest}/app.js".encode() in assets.shell("/").body
    assert {"app.js", "index.html"} <= set(assets.files)


@pytest.mark.parametrize(
    ("source", "served"),
    [
        (b"// Why.\nlet a = 1; // b\n  f(a);\n", b"\nlet a = 1; // b\nf(a);\n"),
        (b"/** @type {A} */\nlet a;\n/**\n * Two\n */\nlet b;\n", b"\nlet a;\n\n\n\nlet b;\n"),
        (b'let a = "/* kept */";\nlet b = "http://x";\n', b'let a = "/* kept */";\nlet b = "http://x";\n'),
        (b"const f = (/** @type {A} */ a, b /* c */) => a;\n", b"const f = (a, b /* c */) => a;\n"),
    ],
)
def test_scripts_are_served_without_their_comments_and_each_line_keeps_its_number(
    source: bytes, served: bytes
) -> None:
    assert without_comments(source) == served


def test_no_text_of_a_script_spans_lines() -> None:
    """What is between such lines would be taken for code, and its indentation away."""
    scripts = list(FOLDER.rglob("*.js"))
    spanning = [
        f"{path.name}:{number}"
        for path in scripts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if not line.lstrip().startswith(("//", "*", "/*")) and line.count("`") % 2
    ]
    assert scripts
    assert spanning == []


def test_each_script_is_one_as_it_is_served(tsc: Path, tmp_path: Path) -> None:
    assert tsc, "its interpreter reads them"
    for name, asset in Assets().files.items():
        if name.endswith(".js"):
            script = tmp_path / f"{Path(name).stem}.mjs"
            script.write_bytes(asset.body)
            subprocess.run(["node", "--check", script], check=True, timeout=60)
