"""`python -m erfs` is the `erfs` command. Rule 1: nothing else is here."""

from erfs.cli.main import main

if __name__ == "__main__":
    main()
