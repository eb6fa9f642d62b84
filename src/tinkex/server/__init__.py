"""HTTP: the Tinker protocol over the store and the scheduler. Knows nothing of tensors."""
