"""Continuous batching: requests, prefill, KV cache, and the choice of tokens."""
