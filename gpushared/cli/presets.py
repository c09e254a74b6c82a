"""Serve ``gpushare presets``: show the requests that the admin of this node gave names."""

from __future__ import annotations

from gpushared.cli.listing import Listing, Options, Screen
from gpushared.cli.table import Column, Row
from gpushared.client import Client, Preset


def _row(preset: Preset) -> Row:
    return {
        "name": preset.name,
        "gpu": preset.gpu,
        "memory": preset.gpu_memory,
        "compute": preset.gpu_compute,
        "class": preset.lease_class,
        "time": preset.time,
        "priority": preset.priority,
        "project": preset.project,
        "model": preset.model,
        "description": preset.description,
    }


def fetch(client: Client, options: Options) -> Screen:  # noqa: ARG001 - a listing's signature
    presets = client.presets()
    return Screen(
        rows=[_row(preset) for preset in presets],
        items=[preset.to_json() for preset in presets],
        ids=[preset.name for preset in presets],
        simulated=client.status().simulated,
    )


LISTING = Listing(
    name="presets",
    details="""Use a preset by `gpushare run --preset NAME`; other options win over what the preset says.

\b
Examples:
  gpushare presets
  gpushare run --preset small IMAGE
""",
    schema="gpushare.presets/1",
    columns=(
        Column("name"),
        Column("gpu", right=True),
        Column("memory", right=True),
        Column("compute", right=True),
        Column("class"),
        Column("time", right=True),
        Column("description"),
        Column("priority", right=True, wide=True),
        Column("project", wide=True),
        Column("model", wide=True),
    ),
    fetch=fetch,
)
