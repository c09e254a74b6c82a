"""Who may do what in a pool: certificates, tokens, signed words of nodes, and the people behind them.

Nothing is allowed by default, and every refusal names its cause and what helps.
"""
