"""Losses that clients upload: a graph of named operations, checked, then run on each datum.

Nothing of a client is executed: a node names an operation of a fixed list (`operations`), and its
arguments are plain data (`arguments`). `checks` refuses a graph without torch, so a server can
answer at once; `program` runs it within `bounds`. Knows nothing of HTTP, sessions or models.
"""
