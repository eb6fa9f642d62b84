"""An engine in a process of its own: the client side, the worker, and the messages between them."""
