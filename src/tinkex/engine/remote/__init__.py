"""Workers that dial in over the network: handshake, the server's listener, the worker's loop."""
