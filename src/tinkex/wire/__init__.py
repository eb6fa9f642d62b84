"""Bytes to values and back: JSON, protobuf, `tinker://` paths, limits.

Used by client and server alike. No I/O, and nothing heavy: numpy and torch are never imported here.
"""
