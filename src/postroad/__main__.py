"""`python -m postroad` and the `postroad` command."""

from postroad.cli.root import cli


def main() -> None:
    cli()


if __name__ == "__main__":
    main()
