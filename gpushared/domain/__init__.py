"""The rules: no clock, no I/O, no logging, no asyncio. Events in, instructions out."""
