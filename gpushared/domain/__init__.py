"""Hold the rules: no clock, no I/O, no logging, no asyncio. Events go in, instructions come out."""
