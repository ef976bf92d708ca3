"""The line: who holds which node and who is next. Every step is one Lua script (scripts/*.lua).

`line.py` is the web side's face, `nodes.py` the node's, `board.py` tells a replica's watchers of
their places, `eta.py` turns measured turns into a range.
"""
