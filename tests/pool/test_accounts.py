"""Who an owner is on a node is the node's own matter."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from gpushared.domain.jobs.job import Owner
from gpushared.domain.model.errors import PermissionRefused, TimedOut
from gpushared.node.jobs import job_host as module
from gpushared.node.jobs.job_host import AccountRules, LocalAccounts

GAMES = pwd.getpwnam("games")
RULES = AccountRules(
    "ws1",
    trusted_realms=("lab",),
    accounts={"eve@lab": "nobody", "eva": "games", "toor": "root", "x": "a\0b"},
    trusted_groups=("games",),
)


@pytest.fixture
def login_defs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which ``games`` is an ordinary user, as those of this machine may have no ordinary one."""
    path = tmp_path / "login.defs"
    path.write_text(f"# UID_MIN 1\nUID_MAX\t60000\nUID_MIN\t\t\t{GAMES.pw_uid}\n")
    monkeypatch.setattr(module, "LOGIN_DEFS", path)
    return path


@pytest.mark.parametrize(
    ("principal", "person", "account"),
    [
        ("games@ws1", "", "games"),
        ("games@lab", "", "games"),
        ("eve@lab", "eva", "nobody"),
        ("eve@far", "eva", "games"),
    ],
    ids=["of this node", "of a trusted realm", "named by principal", "named by person"],
)
@pytest.mark.usefixtures("login_defs")
async def test_an_owner_is_the_account_that_the_node_says(principal: str, person: str, account: str) -> None:
    caller = await LocalAccounts(RULES).caller(Owner(principal, person), "pool")
    assert (caller.uid, caller.name) == (pwd.getpwnam(account).pw_uid, account)


@pytest.mark.parametrize(
    ("principal", "person", "words"),
    [
        ("games@far", "games", "does not trust the realm 'far'"),
        ("games", "games", "does not trust the realm ''"),
        ("@lab", "", "does not trust"),
        ("root@ws1", "root", "do not run as root"),
        ("a@far", "toor", "do not run as root"),
        ("no-such-user@lab", "", "no such account"),
        ("a@far", "x", "no such account"),
    ],
    ids=["far", "no realm", "no name", "root", "root by another name", "unknown", "NUL"],
)
async def test_everybody_else_is_refused_in_words(principal: str, person: str, words: str) -> None:
    with pytest.raises(PermissionRefused) as refused:
        await LocalAccounts(RULES).caller(Owner(principal, person), "pool")
    assert words in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("defs", ["UID_MIN 1000\n", "UID_MIN -1\n", None], ids=["told", "nonsense", "none"])
async def test_no_account_of_the_system_is_somebody_s_only_because_it_is_called_so(
    login_defs: Path, defs: str | None
) -> None:
    """They have the same names on all machines, and own what daemons need; an admin may name one."""
    login_defs.unlink()
    if defs is not None:
        login_defs.write_text(defs)
    for principal in ("games@ws1", "games@lab", "nobody@ws1"):
        with pytest.raises(PermissionRefused, match="an account of the system") as refused:
            await LocalAccounts(RULES).caller(Owner(principal, ""), "pool")
        assert f'"{principal}" = ' in refused.value.hint
    named = await LocalAccounts(RULES).caller(Owner("a@far", "eva"), "pool")
    assert named.name == "games"


@pytest.mark.usefixtures("login_defs")
async def test_only_for_the_node_s_own_jobs_does_somebody_keep_the_trust_of_their_groups() -> None:
    accounts, owner = LocalAccounts(RULES), Owner("games@ws1", "games")
    trusts = [(await accounts.caller(owner, coordinator)).trusted for coordinator in ("", "pool")]
    assert trusts == [True, False]


async def test_name_services_that_hang_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which must not be taken for a refusal, because that would be for ever."""
    monkeypatch.setattr(module, "NAME_SERVICE_SECONDS", 0.0)
    with pytest.raises(TimedOut):
        await LocalAccounts(RULES).caller(Owner("games@ws1", "games"), "pool")
