"""What the hub of a test needs besides what the page says: no people, free ports, and a stand-in to start."""

import json
import os
from typing import Any

c: Any = globals()["c"]
"""JupyterHub puts it there."""
given: dict[str, Any] = json.loads(os.environ["HUB"])
for block in given["page"]:
    exec(block)

c.DockerSpawner.cmd = given["command"]
c.DockerSpawner.name_template = given["prefix"] + "-{username}"
c.DockerSpawner.extra_host_config = {"init": True}
c.DockerSpawner.extra_create_kwargs["labels"].update(given["labels"])
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.bind_url = f"http://127.0.0.1:{given['ports'][0]}"
c.JupyterHub.hub_port = given["ports"][1]
c.ConfigurableHTTPProxy.command = [given["proxy"]]
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{given['ports'][2]}"
# A busy machine takes longer than the ten seconds after which the hub answers that it goes on.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 60}
c.JupyterHub.services = [{"name": "test", "api_token": given["token"]}]
c.JupyterHub.load_roles = [
    {"name": "test", "services": ["test"], "scopes": ["admin:users", "admin:servers", "list:users"]}
]
