"""Keep the audit: who changed what, and who was refused what, in a file of its own and in journald."""
