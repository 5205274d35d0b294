"""`python -m rowlock` is the same as the `rowlock` command."""

from rowlock.cli import main

if __name__ == "__main__":
    main()
