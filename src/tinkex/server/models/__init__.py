"""Which base models a server has, and the engine that runs them."""
