"""A load driver in a process of its own, and the judge of what it got.

`driver` sends at given rates whatever becomes of what was sent before (open loop), `judge` replays
every operation on a null engine in this process and compares. `campaign` puts a server, a driver
and a judge together.
"""
