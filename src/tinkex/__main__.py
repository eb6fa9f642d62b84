"""`python -m tinkex` is `tinkex`."""

from tinkex.cli.main import main

if __name__ == "__main__":
    main()
