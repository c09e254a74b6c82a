"""What a confined caller may ask of the engine: which fields there are, the site's rules, and the judge."""
