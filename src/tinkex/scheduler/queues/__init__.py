"""What waits, and what runs next. Pure, apart from clocks that are passed in."""
