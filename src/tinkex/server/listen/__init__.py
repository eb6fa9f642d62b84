"""Sockets and connections: uvicorn with bounds."""
