"""Keep jobs in one SQLite file: the ``JobStore`` port of a coordinator."""
