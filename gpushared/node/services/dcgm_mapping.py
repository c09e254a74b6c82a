"""Write which leases hold each GPU, as NVIDIA's dcgm-exporter reads it: the label ``hpc_job`` of its metrics.

A file of the GPU's index holds one lease id a line (``--hpc-job-mapping-dir`` of dcgm-exporter). A GPU without
a lease has no file: an exporter of 2024 leaves out all metrics of a GPU whose file is empty.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gpushared.daemon.troubles import Troubles
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.lease import LeaseId
from gpushared.node.runtime.loop import Loop

PART = "dcgm-mapping"
LOOK_SECONDS = 30.0
"""The files are compared at least this often, because others may change them."""
_OURS = re.compile(r"[0-9]+(\.[0-9]+)?")
_READABLE = 0o644


class DcgmMapping:
    """Keep the files as the leases are. ``folder`` returns the configured folder, empty for none."""

    def __init__(self, loop: Loop, folder: Callable[[], str], troubles: Troubles) -> None:
        self._loop = loop
        self._folder = folder
        self._troubles = troubles

    async def run(self) -> None:
        """Follow the leases for ever; a folder that cannot be written raises a trouble and nothing else."""
        while True:
            folder = self._folder()
            if folder:
                await self._write(Path(folder), mapping(self._loop.state))
            else:
                self._troubles.cleared(PART)
            await self._loop.changed(LOOK_SECONDS)

    async def _write(self, folder: Path, texts: Mapping[str, str]) -> None:
        try:
            await asyncio.to_thread(write_mapping, folder, texts)
        except OSError as error:
            text = f"the job mapping for dcgm-exporter cannot be written to {folder}: {error.strerror}"
            self._troubles.raised(PART, text)
        else:
            self._troubles.cleared(PART)


def mapping(state: NodeState) -> dict[str, str]:
    """Return the content of each file by its name: ``2`` for a GPU, ``2.0`` for a MIG instance."""
    on_gpu: dict[str, list[LeaseId]] = {}
    for lease in state.holders():
        for grant in lease.grants:
            gpu = state.gpus.get(grant.gpu)
            if gpu is not None:
                name = str(gpu.index) if gpu.mig is None else f"{gpu.index}.{gpu.mig.index}"
                on_gpu.setdefault(name, []).append(lease.id)
    return {name: "".join(f"{lease}\n" for lease in sorted(leases)) for name, leases in on_gpu.items()}


def write_mapping(folder: Path, texts: Mapping[str, str]) -> None:
    """Make these the files of the folder, each at once; other files stay. Raises OSError."""
    for name, text in texts.items():
        path = folder / name
        if not path.is_file() or path.read_text(errors="replace") != text:
            _write(folder / f".{name}.new", text).replace(path)
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) and path.name not in texts:
            path.unlink()


def _write(path: Path, text: str) -> Path:
    """Write a new file. The folder may belong to others, who may have put a link there."""
    path.unlink(missing_ok=True)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _READABLE)
    with os.fdopen(opened, "w", encoding="ascii") as file:
        os.fchmod(opened, _READABLE)  # the exporter runs as another user
        file.write(text)
    return path
