"""How hard the property tests look.

``HYPOTHESIS_PROFILE=thorough`` looks for minutes, the default for seconds, at other examples each time. A
failure prints a ``@reproduce_failure`` line and is kept in ``.hypothesis``, from where the next run begins.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "quick",
    max_examples=75,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile(
    "thorough",
    max_examples=2000,
    stateful_step_count=150,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
