"""Pieces of HTTP: headers, compression, route table, connection shares, access log."""
