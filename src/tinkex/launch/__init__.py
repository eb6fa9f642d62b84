"""Workers on a Ray cluster: Ray places and restarts them; their data does not pass through it.

Only `launcher.py` and the processes of its actors import Ray; the server's process never does.
"""
