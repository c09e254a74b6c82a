"""Judge a confined caller's requests to the engine, by the table of fields and the site's rules."""
