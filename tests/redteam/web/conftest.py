"""Sites that are attacked."""

from tests.web.conftest import play

__all__ = ["play"]
