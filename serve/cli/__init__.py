"""The command ``pace``. Each subcommand lives in a module of its own, imported when it is used."""

from __future__ import annotations

import errno
import importlib
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, TypeAlias

import click

from engine.errors import PaceError

# Name → (module, object, one line for `pace --help`, which imports none of them).
COMMANDS = {
    "bench": ("bench.cli", "bench", "Compare eviction methods on long sessions."),
    "clean": ("serve.cli.clean", "clean", "Remove what PACE keeps on this machine."),
    "dashboard": ("serve.cli.dashboard", "dashboard", "Show what sessions hold, in a browser."),
    "demo": ("serve.cli.demo", "demo", "Play a demo session against a server."),
    "doctor": ("serve.cli.doctor", "doctor", "Check whether this machine is ready."),
    "model": ("serve.cli.model", "model", "Add, list and check models."),
    "serve": ("serve.cli.serve", "serve", "Start the server."),
}
CommandTable: TypeAlias = Mapping[str, tuple[str, str, str]]
# A person can act on these without a traceback.
_PLAIN_ERRNOS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
)


class LazyGroup(click.Group):
    """A group that imports a subcommand's module only when that subcommand is run.

    ``table``: like ``COMMANDS``; commands may be added beside it.
    """

    def __init__(self, *args: Any, table: CommandTable, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self.table, *self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module, name, _ = self.table[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}. Commands: {', '.join(names)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = {name: line for name, (_, _, line) in self.table.items()}
        lines |= {name: command.get_short_help_str() for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(lines.items()))


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="pace-engine", prog_name="pace")
def cli() -> None:
    """PACE: long agent sessions from a small, constant KV cache."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``pace`` and return its exit code.

    0: done; 1: failed, with one line ``Error: …`` on stderr; 2: wrong usage; 130: Ctrl-C;
    143: terminated.
    """
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        result: Any = cli.main(
            args=None if argv is None else list(argv), prog_name="pace", standalone_mode=False
        )
        return result if isinstance(result, int) else 0
    except PaceError as error:
        _show(error.message)
        return 1
    except (click.Abort, KeyboardInterrupt):
        _show("interrupted")
        return 130
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except OSError as error:
        if error.errno not in _PLAIN_ERRNOS:
            raise
        _show(str(error))
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)


def _show(message: str) -> None:
    click.secho(f"Error: {message}", fg="red", err=True)


def _terminate(signum: int, frame: FrameType | None) -> None:
    """Unwind on SIGTERM, so that temporary files and child processes are cleaned up."""
    sys.exit(128 + signum)
