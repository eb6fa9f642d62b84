"""Folders in an object store: written whole or not at all, cached on the local disk by size."""
