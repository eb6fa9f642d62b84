"""Whole models from a base and an adapter: the base's own files, with the adapter's change added.

Works on files alone, a few megabytes at a time: no engine takes part and no model is loaded.
"""
