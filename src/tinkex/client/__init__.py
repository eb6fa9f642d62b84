"""The SDK: everything between a researcher's loop and the wire."""
