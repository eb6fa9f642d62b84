"""Training steps: forward, loss, backward, optimizer."""
