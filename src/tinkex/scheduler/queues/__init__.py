"""Queues of operations and samples, and the choice of what runs next. Pure; clocks are given."""
