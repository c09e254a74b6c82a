"""Judge a confined caller's requests to the engine: the table of fields, the site's rules, the judge."""
