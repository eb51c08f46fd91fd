"""The `trunkline` command: finds its subcommands by entry point, turns expected errors into one line."""

import sys
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from trunkline.shared.errors import TrunklineError

GROUP = "trunkline.commands"


def build(wanted: str | None = None) -> typer.Typer:
    """The command with every subcommand whose extra is installed; with none but `wanted`, if there is one of that name.

    A subcommand whose packages are missing stays visible and says what to install.
    """
    commands = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    app = typer.Typer(
        name="trunkline",
        help="A cluster router for LLM inference that knows prefixes, with an agent on every node.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,  # Markup takes "[default: ...]" out of help, and boxes cut long flags off.
    )
    app.callback()(_root)
    # What the others import takes a second of CPU time.
    for entry in [entry for entry in commands if entry.name == wanted] or commands:
        try:
            command = entry.load()
        except ModuleNotFoundError as error:
            _add_missing(app, entry.name, error)
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name)
        else:
            app.command(entry.name)(command)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"trunkline {version('trunkline')}")
        raise typer.Exit


def _root(
    show: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


def _add_missing(app: typer.Typer, name: str, error: ModuleNotFoundError) -> None:
    """Whatever words come behind `name`, the answer is what to install."""

    @app.command(
        name,
        help=f"Not available here: package {error.name!r} is not installed.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def explain() -> None:
        raise TrunklineError(_needs(error))


def _needs(error: ModuleNotFoundError) -> str:
    return f"the package {error.name!r} is needed and not installed: pip install 'trunkline[agent]'"


def main() -> None:
    """Entry point of the console script. Exit code 1 with one line for an expected error, 130 after Ctrl-C."""
    try:
        build(next((word for word in sys.argv[1:] if not word.startswith("-")), None))()
    except ModuleNotFoundError as error:  # A command that loads what it needs when it runs.
        if (error.name or "trunkline").startswith("trunkline"):
            raise
        print(f"trunkline: {_needs(error)}", file=sys.stderr)
        sys.exit(1)
    except TrunklineError as error:
        print(f"trunkline: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
