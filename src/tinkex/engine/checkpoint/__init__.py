"""Adapters on disk: PEFT folders with the optimizer state beside them."""
