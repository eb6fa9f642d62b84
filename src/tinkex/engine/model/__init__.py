"""The lean decoder: configuration, layers, weights, and the fallback through transformers."""
