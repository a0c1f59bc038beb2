"""`python -m webhook` is the `holdfast` command."""

from webhook.cli import main

if __name__ == "__main__":
    main()
