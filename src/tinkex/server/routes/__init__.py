"""The routes, by subject. Each module lists its own in `ROUTES`."""
