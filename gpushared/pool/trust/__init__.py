"""Decide who may do what in a pool: certificates, tokens, nodes' signed words, and the people behind them.

Nothing is allowed by default, and every refusal names its cause and a remedy.
"""
