"""Start, stop, and background maintenance of a server."""
