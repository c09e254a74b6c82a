"""Jobs: what is to run somewhere, sometime; who decides where, and how nobody runs twice.

``coordinator`` decides for many nodes (or for one: its own), ``attempts`` is what a node answers. Both are
pure; what goes between them may be lost, doubled, delayed or reordered.
"""
