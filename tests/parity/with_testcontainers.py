"""A program as people write it with testcontainers; a test runs it with an environment of its own.

    with_testcontainers.py IMAGE FOLDER

It prints what it saw as JSON. The library reads its settings when it is imported.
"""

import json
import sys
import urllib.request
from typing import Any

from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

SERVE = (
    "mkdir /tmp/www && cat /given/word > /tmp/www/word && echo serving && exec httpd -f -p 8080 -h /tmp/www"
)


def main(image: str, folder: str) -> dict[str, Any]:
    with Network() as network:
        server = (
            DockerContainer(image)
            .with_command(["sh", "-c", SERVE])
            .with_env("WORD", "from outside")
            .with_exposed_ports(8080)
            .with_volume_mapping(folder, "/given", "ro")
            .with_network(network)
            .with_network_aliases("server")
            .waiting_for(LogMessageWaitStrategy("serving"))
        )
        with server:
            url = f"http://{server.get_container_host_ip()}:{server.get_exposed_port(8080)}/word"
            with urllib.request.urlopen(url, timeout=10) as answer:
                word = answer.read().decode()
            ran = server.exec(["sh", "-c", "echo $WORD; exit 3"])
            near = server.exec(["wget", "-q", "-O", "-", "http://server:8080/word"])
            out, err = server.get_logs()
            return {
                "published": word,
                "exec": [ran.exit_code, ran.output.decode()],
                "on the network": [near.exit_code, near.output.decode()],
                "logs": out.decode(),
                "errors": err.decode(),
            }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201 - what the test reads
