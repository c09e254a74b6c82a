"""Define the daemon's configuration: the settings, where they come from, and how they are shown."""

from gpushared.config.load import DEFAULT_PATH, Loaded, load
from gpushared.config.model import Config, Preset
from gpushared.config.show import ShownSetting, reference, settings, to_toml

__all__ = [
    "DEFAULT_PATH",
    "Config",
    "Loaded",
    "Preset",
    "ShownSetting",
    "load",
    "reference",
    "settings",
    "to_toml",
]
