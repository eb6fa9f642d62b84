"""Hypothesis settings of these tests: the same examples every time, whatever the machine does."""

from hypothesis import settings

steady = settings(deadline=None, derandomize=True, max_examples=60)
