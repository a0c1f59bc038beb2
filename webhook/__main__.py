"""`python -m holdfast.webhook` is the `holdfast` command."""

from holdfast.webhook.cli.main import main

if __name__ == "__main__":
    main()
