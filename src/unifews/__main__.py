"""`python -m unifews` is `unifews`."""

from unifews.cli import main

if __name__ == "__main__":
    main()
