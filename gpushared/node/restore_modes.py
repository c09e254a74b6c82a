"""Put compute modes back when no daemon does it: after a stop for good, or a crash.

The unit runs this after every end of the daemon, restarts included. Containers outlive the daemon, so a mode
stays while the container of a lease that it was set for is up, or might be. If the engine does not answer,
the next start of the daemon puts the other modes right.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpushared.config.model import Config
from gpushared.domain.model.errors import GpushareError
from gpushared.engine.docker_engine import DockerEngine
from gpushared.gpus.nvml import NvmlGpus
from gpushared.gpus.nvml_settings import NvmlComputeModes
from gpushared.ports import ContainerStatus
from gpushared.sharing.compute_mode import LEDGER_NAME, ExclusiveModes

LONGEST_SECONDS = 20.0
"""The limit is less than systemd's own."""
UP = (ContainerStatus.RUNNING, ContainerStatus.PAUSED, ContainerStatus.RESTARTING)


async def restore_modes(config: Config) -> str | None:
    """Put the modes back, and return a sentence on the result, None if there was nothing to do.

    Errors of the engine and the GPUs become a sentence too.
    """
    path = Path(config.node.state_dir) / LEDGER_NAME
    if not path.exists():
        return None
    engine, gpus = DockerEngine(f"unix://{config.engine.socket}"), NvmlGpus()
    modes = ExclusiveModes(NvmlComputeModes(gpus), path)
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            before = await modes.known()
            up = {one.device_name for one in await engine.containers() if one.status in UP}
            await modes.put_right(up)
            after = await modes.known()
    except TimeoutError:
        return f"not done in {LONGEST_SECONDS:g} s; the daemon does it at its next start"
    except GpushareError as error:
        return f"left for the daemon's next start: {error.message}"
    finally:
        modes.close()
        await engine.close()
        await gpus.close()
    done = len(before) - len(after)
    return f"compute mode put back on {done} of the {len(before)} GPUs that it was set on"
