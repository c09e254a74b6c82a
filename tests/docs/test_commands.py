"""Every command, option and call is in the reference, and the reference names none that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpushared.api.v1 import (
    audit_pb2,
    gpus_pb2,
    history_pb2,
    jobs_pb2,
    leases_pb2,
    node_pb2,
    policy_pb2,
    pool_pb2,
    projects_pb2,
)
from gpushared.cli.tree import cli
from gpushared.domain.model.errors import Code

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
API_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
MODULES = (
    leases_pb2,
    gpus_pb2,
    projects_pb2,
    node_pb2,
    audit_pb2,
    history_pb2,
    jobs_pb2,
    policy_pb2,
    pool_pb2,
)
CALLS = [
    f"{service.full_name}/{method.name}"
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def commands(group: click.Group, above: str = "gpushare") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{above} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{above} {name}")


COMMANDS = dict(commands(cli))
LISTINGS = PAGE.partition("### Listings\n")[2].partition("\n#")[0]
WITH_LISTING_OPTIONS = re.findall(r"`([a-z ]+)`", LISTINGS.partition(" have the ")[0])


def section(path: str) -> str:
    """The page's part on one command."""
    heading = rf"^#+ `{re.escape(path)}(?![a-z-])[^`\n]*`\n"
    match = re.search(rf"{heading}(.*?)(?=^#+ `|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"{path} has no section in docs/reference/commands.md"
    return match[1]


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_is_documented_with_all_its_options(path: str) -> None:
    is_listing = path.removeprefix("gpushare ") in WITH_LISTING_OPTIONS
    text = section(path) + (LISTINGS if is_listing else "")
    for param in COMMANDS[path].params:
        for option in param.opts if isinstance(param, click.Option) else ():
            assert re.search(rf"`{option}[` ]", text), f"{option} of {path} is not documented"


@pytest.mark.parametrize("path", COMMANDS)
def test_the_reference_names_no_option_that_is_gone(path: str) -> None:
    known = {option for param in COMMANDS[path].params for option in param.opts} | {"-h", "--help"}
    rows = re.findall(r"^\| (`-[^|]*) \|", section(path), re.MULTILINE)
    written = {word for row in rows for word in re.findall(r"(?<!\w)--?[a-z][a-z-]*", row)}
    assert written <= known


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_has_help_for_itself_and_for_each_option(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    assert command.get_short_help_str().endswith(".")
    assert all(param.help for param in command.params if isinstance(param, click.Option))


def test_no_section_is_about_a_command_that_is_gone() -> None:
    assert set(re.findall(r"^#+ `(gpushare(?: [a-z-]+)+)", PAGE, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("call", CALLS)
def test_the_reference_names_the_call(call: str) -> None:
    assert f"`{call}`" in API_PAGE.read_text()


@pytest.mark.parametrize("code", sorted(set(Code) - {Code.INTERNAL, Code.UNIMPLEMENTED}))
def test_the_reference_names_the_code(code: Code) -> None:
    assert f"`{code}`" in API_PAGE.read_text()
