"""Decide who may do what in a pool, by certificates, tokens, nodes' assertions and the pool's people.

Nothing is allowed by default, and every refusal names its cause and a remedy.
"""
