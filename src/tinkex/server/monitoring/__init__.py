"""What a server shows of itself: its status, metrics and traces."""
