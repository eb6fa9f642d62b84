"""Files and folders that are written whole or not at all, and errors of the
disk in plain language."""
