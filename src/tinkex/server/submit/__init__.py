"""Submitting operations and waiting for their results."""
