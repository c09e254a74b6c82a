"""Create a pool: make the state directory of its coordinator, with a certificate authority."""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from gpushared.daemon.files import as_config_error, make_private_folder
from gpushared.domain.model.errors import ConfigError
from gpushared.pool.trust.authority import Authority
from gpushared.pool.trust.shared_trust import make_store_key
from gpushared.pool.trust.trust import CA_FOLDER

POOL_USER = "gpushared-pool"


@dataclass(frozen=True, slots=True)
class NewPool:
    """Describe the pool that was made. ``user`` owns its files now."""

    pool: str
    state_dir: Path
    digest: str
    user: str


def found_pool(state_dir: Path, pool: str, now: float, user: str = "") -> NewPool:
    """Create a pool. Raises RequestError (bad name), StateConflict (the folder has a pool), ConfigError.

    ``user`` becomes the owner of the files. If it is empty, root gives the files to the coordinator's user,
    where the machine has that user.
    """
    owner = user or _coordinators_user()
    account = _account(owner)
    make_private_folder(state_dir)
    authority = Authority.create(state_dir / CA_FOLDER, pool, now)
    make_store_key(state_dir / CA_FOLDER)
    if os.geteuid() == 0:
        _give_to(state_dir, account)
    return NewPool(pool, state_dir, authority.digest, owner)


def _coordinators_user() -> str:
    own = pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() != 0:
        return own
    try:
        return pwd.getpwnam(POOL_USER).pw_name
    except KeyError:
        return own


def _account(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise ConfigError(f"there is no user {user}", hint="install the coordinator first") from error


def _give_to(state_dir: Path, account: pwd.struct_passwd) -> None:
    """Give the files that were made now to the account; other files keep their owner."""
    folder = state_dir / CA_FOLDER
    with as_config_error(folder, f"cannot be given to {account.pw_name}"):
        for path in (state_dir, folder, *folder.iterdir()):
            shutil.chown(path, account.pw_uid, account.pw_gid)
