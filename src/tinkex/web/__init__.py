"""The page of a server: its files, and nothing of how they are sent."""
