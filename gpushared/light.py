"""Replace parts of ``typing`` for modules that a command must not wait for.

Importing ``typing`` takes the command line longer than asking the daemon. A type checker sees the parts of
``typing`` itself; other names that only annotations need are imported under ``TYPE_CHECKING``.
"""

from __future__ import annotations

__all__ = ["TYPE_CHECKING", "NamedTuple", "TypedDict"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple, TypedDict
else:
    from collections import namedtuple

    class _Record(type):
        """Make a named tuple of a class with annotated fields, with the methods of the class."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = body.pop("__annotations__")
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body.pop("__module__"))  # noqa: PYI024
            for key, value in body.items():
                setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_Record):
        """Stand for ``typing.NamedTuple``."""

    class TypedDict:
        """Stand for ``typing.TypedDict`` in annotations; nobody makes one at run time."""

        def __init_subclass__(cls, *, total=True):
            """Ignore ``total``, which is for the type checker."""
