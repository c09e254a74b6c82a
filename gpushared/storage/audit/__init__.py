"""Keep the audit of changes and refusals, in a file of its own and in journald."""
