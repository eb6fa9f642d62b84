"""Text to token ids and back, and conversations as text: for client, command line and server."""
