"""Know the containers of callers."""
