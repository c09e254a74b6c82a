"""Leads a store and writes one transaction after another; run as a program, to be killed.

Transaction ``n`` puts ``n`` in all of ``KEYS`` and in a record of its own, and deletes the one before.
"""

import asyncio
import os
import sys
from pathlib import Path

from gpushared.ports.job_store import Transaction
from gpushared.storage.job_store import SqliteStore

KEYS = tuple(f"same/{n}" for n in range(20))


async def write_on(path: Path) -> None:
    """Until it is killed; tells each number on stdout once it is durable."""
    store = SqliteStore(path)
    epoch = await store.lead()
    found = (await store.load(KEYS[0])).records
    number = int(found[KEYS[0]].value) if found else 0
    while True:
        number += 1
        text = b"%d" % number
        puts = dict.fromkeys((*KEYS, f"own/{number}"), text)
        await store.commit(Transaction(epoch, puts, deletes=(f"own/{number - 1}",)))
        os.write(1, text + b"\n")


if __name__ == "__main__":
    asyncio.run(write_on(Path(sys.argv[1])))
