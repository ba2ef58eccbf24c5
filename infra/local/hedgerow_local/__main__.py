"""Entry of the console script: says in one line what is missing, else hands over to `cli`."""

from __future__ import annotations

import sys

from hedgerow_shared import __version__


def main() -> int:
    """Run the command. Returns the exit status: 0 done, 1 refused or failed, 2 cannot start."""
    if sys.argv[1:] == ["--version"]:
        print(f"hedgerow {__version__}")
        return 0
    try:
        from hedgerow_local.cli import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write(
            f"hedgerow: the command line needs {error.name}: pip install 'hedgerow[local]' (the "
            "services themselves run without it: python -m hedgerow_gateway --help)\n"
        )
        return 2
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
