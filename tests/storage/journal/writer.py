"""Commits one lease after another and says so after each; run as a program, to be killed.

Each commit holds the new lease with ``LINES`` lines of story and the end of the lease before it.
"""

import asyncio
import os
import sys
from pathlib import Path

from gpushared.domain.model.lease import Ended, Finished
from gpushared.ports import JournalWrite
from gpushared.storage.journal import SqliteJournal
from gpushared.testing import fake_lease

LINES = ("asked", "waits", "still waits")


def write(sequence: int) -> JournalWrite:
    """What the commit number ``sequence`` writes."""
    new = fake_lease(sequence, story=LINES)
    before = (fake_lease(sequence - 1, Ended(Finished(0), at=float(sequence))),) if sequence > 1 else ()
    return JournalWrite((*before, new), tuple((new.id, line) for line in new.story), sequence + 1)


async def write_on(path: Path, commits: int) -> None:
    """Commit so many leases more, and tell the number of each on stdout once it is durable."""
    journal = SqliteJournal(path)
    first = (await journal.load()).next_sequence
    for sequence in range(first, first + commits):
        await journal.commit([write(sequence)])
        os.write(1, b"%d\n" % sequence)
    await journal.close()


if __name__ == "__main__":
    asyncio.run(write_on(Path(sys.argv[1]), int(sys.argv[2])))
