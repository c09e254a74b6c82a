"""The command ``gpushare`` as another user, who need not be able to read this checkout and its Python.

    as_user.py UID WORDS...

All modules are imported while this process is still root; what is then run is the command itself.
"""

from __future__ import annotations

import codecs
import concurrent.futures.thread  # noqa: F401 - the command imports it when it has to
import os
import pkgutil
import sys
import threading  # noqa: F401 - the command imports it when it has to
import unicodedata  # noqa: F401 - and this, to measure text that is not ASCII
from importlib import import_module

import gpushared.cli
import gpushared.client
import gpushared.domain.model.request_spec  # for sizes that need reading
from gpushared.cli.main import main

if __name__ == "__main__":
    for package in (gpushared.cli, gpushared.client):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    for encoding in ("ascii", "idna", "latin-1"):
        codecs.lookup(encoding)
    uid = int(sys.argv[1])
    sys.argv = ["gpushare", *sys.argv[2:]]
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    sys.exit(main())
