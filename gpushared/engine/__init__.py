"""Talk to the container engine: Docker by its SDK, lease devices by CDI, processes by ``/proc``."""
