"""Define what is counted: GPU hours, use of held, idle-held, too big, waiting. ``accounting.md`` explains it."""
