"""Workers on a Ray cluster: Ray places and restarts them, and carries nothing of their work.

Only `launcher.py` and the processes of its actors import Ray; the server's process never does.
"""
