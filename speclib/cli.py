"""The command line: it parses, calls the library, and turns a bad input into one line and exit status 2."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, help="Speculative decoding, faster and exact.")

PAIR_HELP = "smol, llama, qwen, or TARGET,DRAFT as hub names or folders."
PairOption = Annotated[str, typer.Option("--pair", envvar="SPECLIB_PAIR", help=PAIR_HELP)]
PairArgument = Annotated[str, typer.Argument(envvar="SPECLIB_PAIR", help=PAIR_HELP)]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        import speclib

        typer.echo(speclib.__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def fetch(pair: PairArgument = "smol") -> None:
    """Download a pair's weights, convert and check them, once; print their folders, the target's first."""
    from speclib import pairs

    for folder in filter(None, pairs.fetch(pair)):
        typer.echo(folder)


@app.command()
def doctor(pair: PairOption = "smol") -> None:
    """Say what this machine has, what it lacks for the course, and the remedy."""
    from speclib import doctor

    raise typer.Exit(doctor.report(pair))


def main() -> None:
    """Run the command line; exit status 2 and one line on stderr for a bad input.

    SPECLIB_DEBUG=1 lets the exception through with its traceback.
    """
    try:
        # Not standalone: typer would draw a box of several lines around a wrong option.
        status = app(prog_name="speclib", standalone_mode=False)
    except Exception as error:
        if os.environ.get("SPECLIB_DEBUG") == "1" or not _expected(error):
            raise
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        sys.exit(_one_line(message))
    sys.exit(status or 0)


def _expected(error: Exception) -> bool:
    # Asked of the module only where a command has imported it: importing it here would import PyTorch.
    pairs = sys.modules.get("speclib.pairs")
    kinds = (ValueError, TypeError, *([pairs.PairError] if pairs else []))
    return isinstance(error, kinds) or hasattr(error, "format_message")


def _one_line(message: str) -> int:
    print("speclib: " + " ".join(message.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
