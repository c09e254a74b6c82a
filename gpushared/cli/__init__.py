"""Hold the command line: one file a command, each loaded only when it is used."""
