"""A container by aiodocker, with a limit to the silence that it bears: its id."""

import asyncio
import json
import sys

import aiodocker
import aiohttp


async def main(url: str, config: str, silence_seconds: str) -> None:
    limit = aiohttp.ClientTimeout(sock_read=float(silence_seconds))
    async with aiodocker.Docker(url=url, timeout=limit) as client:
        container = await client.containers.create(json.loads(config))
        await container.start()
        sys.stdout.write(container.id)


asyncio.run(main(*sys.argv[1:]))
