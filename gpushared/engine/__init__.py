"""The container engine: Docker through its SDK, lease devices through CDI, processes through ``/proc``."""
