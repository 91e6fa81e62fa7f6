"""Command line of autotune, runnable from a checkout: `python cli.py --help`. All of it is in `autotune`."""

from autotune.__main__ import main

if __name__ == "__main__":
    main()
