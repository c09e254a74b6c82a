"""The table of packages in ARCHITECTURE.md is made from the import contracts and the packages' docstrings.

``python -m tests.docs.test_architecture`` writes it anew.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- packages: begin -->\n", "<!-- packages: end -->\n"


def contracts() -> list[dict[str, Any]]:
    """The import contracts of the kind that orders packages."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return [one for one in found if one["type"] == "layers"]


def layers_of(contract: dict[str, Any]) -> list[list[str]]:
    """The names in each layer, the highest layer first."""
    return [[name.strip(" ()") for name in layer.split("|")] for layer in contract["layers"]]


def purpose_of(folder: Path) -> str:
    """The docstring's first sentence of a package, or of a module that stands among packages."""
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def rows() -> Iterator[tuple[str, str, str]]:
    """Layer, package and purpose; layer 1 is the highest, and each container numbers its own."""
    for contract in contracts():
        (container,) = contract["containers"]
        folder = ROOT.joinpath(*container.split("."))
        inside = f"{container.partition('.')[2].replace('.', '/')}/" if "." in container else ""
        for depth, names in enumerate(layers_of(contract), start=1):
            for name in names:
                is_package = (folder / name).is_dir()
                if is_package or not inside:
                    package = f"`{inside}{name}{'/' if is_package else '.py'}`"
                    yield f"{inside}{depth}", package, purpose_of(folder / name)


def table() -> str:
    lines = ["| layer | package | purpose |", "|---|---|---|"]
    lines += [f"| {layer} | {package} | {purpose} |" for layer, package, purpose in rows()]
    return "\n".join(lines) + "\n"


def test_the_table_of_packages_is_the_one_of_the_import_contracts() -> None:
    text = PAGE.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0] == table(), (
        "write it anew: python -m tests.docs.test_architecture"
    )


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
