"""Sites that are attacked."""

from tests.web.conftest import new_site

__all__ = ["new_site"]
