"""Keep the page's files in memory, under a path that names their contents.

``assets/index.html`` is the shell, which is served at each address of the page: ``__BASE__`` in it becomes the
base path, and ``__DIGEST__`` one digest over all files. All other files are served below ``assets/DIGEST/``,
so browsers may keep them for ever, and their relative imports need no build. Scripts and styles are
served without comments and indentation: these are a third of them, and each line keeps its number.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

FOLDER = Path(__file__).with_name("assets")
SHELL = "index.html"
DIGEST_LENGTH = 16
GZIP_LEVEL = 9
_COMMENT = re.compile(rb"^[ \t]*(?://[^\n]*|/\*.*?\*/[ \t]*)$|/\*\* [^\n]*?\*/ ?", re.MULTILINE | re.DOTALL)
_INDENTATION = re.compile(rb"^[ \t]+", re.MULTILINE)
TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".woff2": b"font/woff2",
}
"""A file of another type is not served."""


@dataclass(frozen=True)
class Asset:
    """Hold one file."""

    content_type: bytes
    body: bytes

    @cached_property
    def gzipped(self) -> bytes:
        """Return the compressed body, the same in each process."""
        return gzip.compress(self.body, GZIP_LEVEL, mtime=0)


class Assets:
    """Hold the files of the page, read once at their first use."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    @cached_property
    def files(self) -> Mapping[str, Asset]:
        """Return the files by their names, such as ``pages/queue.js``; the shell is among them."""
        paths = sorted(path for path in self._folder.rglob("*") if path.suffix in TYPES and path.is_file())
        named = {path.relative_to(self._folder).as_posix(): path for path in paths}
        return {
            name: Asset(TYPES[path.suffix], _body(name, path.read_bytes())) for name, path in named.items()
        }

    @cached_property
    def digest(self) -> str:
        """Return one digest over all files and their names."""
        whole = hashlib.sha256()
        for name, asset in self.files.items():
            whole.update(b"%s\0%d\0%s" % (name.encode(), len(asset.body), asset.body))
        return whole.hexdigest()[:DIGEST_LENGTH]

    def find(self, path: str) -> Asset | None:
        """Return the file at a path below ``assets/``; None for another digest than the present one."""
        digest, _, name = path.partition("/")
        return self.files.get(name) if digest == self.digest and name != SHELL else None

    def shell(self, base: str) -> Asset:
        """Return the shell for a base path, which begins and ends with ``/``."""
        template = self.files[SHELL]
        body = template.body.replace(b"__BASE__", escape(base).encode())
        return Asset(template.content_type, body.replace(b"__DIGEST__", self.digest.encode()))


def _body(name: str, source: bytes) -> bytes:
    return without_comments(source) if name.endswith((".js", ".css")) else source


def without_comments(source: bytes) -> bytes:
    """Return a script or a style without indentation, comments on lines of their own, and types.

    No text of ours spans lines (a test looks) or has such comments, so nothing but them is lost.
    """
    bare = _COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), source)
    return _INDENTATION.sub(b"", bare)
