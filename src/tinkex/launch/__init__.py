"""Workers on a Ray cluster: Ray places and restarts them; it carries none of their data.

Only `launcher.py` and the processes of its actors import Ray; the server's process never does.
"""
