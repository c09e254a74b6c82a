"""Whole numbers on the command line."""

from __future__ import annotations

import click


class WholeNumber(click.IntRange):
    """A range of whole numbers, which click's messages call so in place of an "integer range"."""

    name = "whole number"
