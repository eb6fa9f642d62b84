"""Monitoring of a server: status, metrics and traces."""
