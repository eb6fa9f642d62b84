"""Model folders made from other formats, and tiny random ones."""
