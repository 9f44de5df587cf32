"""`python -m coreplay`: the command line."""

from coreplay.cli import main

if __name__ == "__main__":
    main()
