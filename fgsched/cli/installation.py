"""The subcommands of fgsched that install it: init, uninstall, slurm-names and completion."""

import os
from pathlib import Path

import click

from fgsched.cli.command import options_of, write
from fgsched.domain.errors import BadUsage


@click.command("init")
@options_of("fgsched init")
def _init(is_print: bool, is_check: bool, to: str, root: str) -> None:
    """Prepare the host for its users; start the controller."""
    from fgsched.cli.install.run import init

    init(root=_image(root), is_print=is_print, is_check=is_check, to=to, environ=os.environ)


@click.command("uninstall")
@options_of("fgsched uninstall")
def _uninstall(purge: bool, kill: bool, root: str) -> None:
    """Remove what init made, except files changed since then."""
    from fgsched.cli.install.run import uninstall

    uninstall(root=_image(root), is_purge=purge, is_kill=kill)


def _image(text: str) -> Path:
    if not os.path.isdir(text):
        raise BadUsage(f"{text!r} is not a directory")
    return Path(os.path.realpath(text))


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def _completion(shell: str) -> None:
    """Print the completions of all commands, for eval in a shell."""
    from fgsched.cli import shells
    from fgsched.cli.install import slurmnames

    names = slurmnames.own_in_path(os.environ)
    write(shells.all_at_once(shell, {name: slurmnames.command_line(name) for name in names}))


@click.command("slurm-names")
@options_of("fgsched slurm-names")
def _slurm_names(is_print: bool, folder: str | None, emptied: str | None) -> None:
    """Give the commands the names that they have in Slurm."""
    from fgsched.cli.install import slurmnames

    if (is_print, folder is not None, emptied is not None).count(True) > 1:
        raise BadUsage("--print, --install and --remove exclude each other")
    if folder is not None:
        write(slurmnames.install(_folder(folder), os.environ))
        _note_names(_folder(folder), are_there=True)
    elif emptied is not None:
        write(slurmnames.remove(_folder(emptied)))
        _note_names(_folder(emptied), are_there=False)
    else:
        write(slurmnames.listed())


def _note_names(folder: Path, *, are_there: bool) -> None:
    """Record for `fgsched uninstall` where root has installed names; not before `fgsched init`."""
    from fgsched.cli.install.carry import Manifest

    if os.geteuid() != 0:
        return
    manifest = Manifest(Path("/"))
    if manifest.exists:
        manifest.note_names(str(folder), are_there=are_there)


def _folder(text: str) -> Path:
    if not text:
        raise BadUsage("name a directory, such as ~/.local/bin")
    return Path(os.path.abspath(text))


INSTALLATION = (_init, _uninstall, _slurm_names, _completion)
