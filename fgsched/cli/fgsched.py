"""fgsched: start, stop and check the controller."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins
from msgspec.structs import replace

from fgsched import protocol
from fgsched.cli.command import CommandGroup, options_of, output, write
from fgsched.cli.simulating import simulate
from fgsched.client import TAKE_OVER, Client, find_paths, start
from fgsched.domain.errors import BadUsage, Exit, NotPermitted, Unreachable
from fgsched.domain.times import format_runtime
from fgsched.system.paths import Paths

if TYPE_CHECKING:
    from fgsched.config.keys import ConfigKey
    from fgsched.config.load import Config


@click.group(cls=CommandGroup, epilog="fgsched doctor")
def fgsched() -> None:
    """Start, stop and check the controller."""


fgsched.add_command(simulate)


def _paths(system: bool) -> Paths:
    if not system:
        return find_paths()
    if os.geteuid() != 0:
        command = click.get_current_context().command_path
        also = " fgctl show log shows the lines about your jobs." if command.endswith("logs") else ""
        raise NotPermitted(
            "--system is for root",
            f"As root: sudo {command} --system. Without it, the controller is that of your commands.{also}",
        )
    return Paths.find(os.environ, 0, system=True)


@fgsched.command("start")
@options_of("fgsched start")
def _start(gpus: str, take_over: bool, system: bool) -> int:
    """Start the controller in the background."""
    paths = _paths(system)
    if paths.mode == "system" and os.geteuid() != 0:
        raise NotPermitted(
            "the controller of this host serves all users, and only root may start it",
            "fgsched status shows it. For a controller of your own set FG_HOME to a directory of yours.",
        )
    words = ["--gpus", gpus] * bool(gpus) + ["--system"] * system + [TAKE_OVER] * take_over
    is_new = start(paths, *words)
    with Client(paths, may_start=False) as client:
        pid = client.call(protocol.Ping()).pid
    if not is_new:
        raise Unreachable(f"another controller is running (pid {pid})", "Stop it first: fgsched stop")
    write(f"controller started (pid {pid})\n")
    return Exit.DONE


@fgsched.command("run")
@options_of("fgsched run")
def _run(gpus: str, system: bool) -> None:
    """Run the controller in the foreground, for systemd."""
    from fgsched.controller.__main__ import run_controller
    from fgsched.system.process import IN_A_JOB, is_inside_job

    _paths(system)
    if is_inside_job(os.environ):
        raise Unreachable(IN_A_JOB, "Start it from a login, or with systemd.")
    run_controller(gpus=gpus, system=system, is_service=True)


@fgsched.command("stop")
@options_of("fgsched stop")
def _stop(kill: bool, system: bool) -> int:
    """Stop the controller; running jobs continue."""
    from fgsched.cli.stopping import stop, stop_nearest

    write((stop if system else stop_nearest)(_paths(system), is_kill=kill))
    return Exit.DONE


@fgsched.command("restart")
@options_of("fgsched restart")
def _restart(system: bool) -> None:
    """Restart the controller; running jobs continue."""
    from fgsched.cli.restart import restart

    write(restart(_paths(system)))


@fgsched.command("upgrade")
@options_of("fgsched upgrade")
def _upgrade(system: bool) -> None:
    """Check the installed version, and restart with it."""
    from fgsched.cli.restart import upgrade

    write(upgrade(_paths(system)))


@fgsched.command("status")
@options_of("fgsched status")
def _status(verbose: bool, system: bool, as_json: bool) -> int:
    """Show the controller's pid, GPUs and jobs."""
    paths = Paths.find(os.environ, os.geteuid(), system=system)
    try:
        with Client(paths, may_start=False, is_prompt=True, names_variables=False) as client:
            about, jobs = client.call(protocol.Ping()), client.call(protocol.ListGpus()).jobs
    except Unreachable as error:
        if as_json:
            write(json.dumps({"running": False, "socket": str(paths.socket), "why": error.cause}) + "\n")
        else:
            write(f"controller  {error.cause}\nsocket      {paths.socket}\n")
        return Exit.UNREACHABLE
    if as_json:
        more = {"jobs": jobs, "socket": str(paths.socket)}
        write(json.dumps({"running": True} | to_builtins(about) | more) + "\n")
    else:
        write(_described(about, jobs, paths, verbose=verbose) + (_described_files(about) if verbose else ""))
    return Exit.DONE


def _described(about: protocol.About, counts: dict[str, int], paths: Paths, *, verbose: bool) -> str:
    import time

    from fgsched.submission.checks import rlimits  # slow to import
    from fgsched.submission.jobwarnings import about_limits, about_variables

    source = f"{about.gpus} from {about.source}" + (f" ({about.note})" if about.note else "")
    jobs = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"
    lines = {
        "controller": f"running, pid {about.pid}, version {about.version}, {about.mode} mode",
        "up": format_runtime(time.time() - about.started_at),
        "GPUs": source,
        "jobs": jobs,
        "socket": str(paths.socket),
        "state": about.state,
    }
    if about.visible is not None:
        lines["limited by"] = f"{about.selection}={about.visible}"
    for word, warnings in (
        ("variables", about_variables(os.environ, about.site)),
        ("limits", about_limits(rlimits(), about.site)),
    ):
        if text := "; ".join(warnings):
            lines[word] = text
    if about.queue_note and not verbose:
        lines["queue"] = about.queue_note
    if about.accounts_note and not verbose:
        lines["accounts"] = about.accounts_note
    return "".join(f"{name:<12}{value}\n" for name, value in lines.items())


def _described_files(about: protocol.About) -> str:
    notes = {"queue": about.queue_note, "accounts": about.accounts_note}
    sizes = {"queue": about.queue_size, "accounts": about.accounts_size}
    lines = {
        name: f"{size / (1 << 20):.1f} MiB" + (f" ({notes[name]})" if notes[name] else "")
        for name, size in sizes.items()
    }
    return "".join(f"{name:<12}{value}\n" for name, value in lines.items())


@fgsched.command("logs")
@options_of("fgsched logs")
def _logs(follow: bool, lines: int | None, job: int | None, system: bool) -> None:
    """Print the controller's log."""
    from fgsched.cli.logs import show

    show(_paths(system), job=job or 0, lines=lines, follow=follow)


@fgsched.command("doctor")
@options_of("fgsched doctor")
def _doctor(enforcement: bool, recover: bool, system: bool, as_json: bool) -> int:
    """Check the host and the controller; 1 if a check fails."""
    if enforcement:
        from fgsched.cli.enforcement import tested

        return tested(as_json=as_json)
    if recover:
        return _recover(_paths(system))
    from fgsched.cli.doctor import FAIL, examine

    findings = examine(_paths(system))
    failed = any(finding.verdict == FAIL for finding in findings)
    if as_json:
        shown = [
            {
                "check": check_result.check,
                "verdict": check_result.verdict,
                "text": check_result.text,
                "remedy": check_result.remedy,
            }
            for check_result in findings
        ]
        write(json.dumps({"healthy": not failed, "checks": shown}) + "\n")
    else:
        write("".join(f"{check_result}\n" for check_result in findings))
    return Exit.REFUSED if failed else Exit.DONE


def _recover(paths: Paths) -> int:
    """Recover a damaged queue while no controller is running."""
    from fgsched.cli.doctor import recovered

    if paths.mode == "system" and os.geteuid():
        raise NotPermitted(
            "the queue is that of the host's controller, and only root may recover it", "Ask root."
        )

    paths.prepare(os.geteuid())
    write(recovered(paths))
    return Exit.DONE


@fgsched.command("config")
@options_of("fgsched config")
def _config(check: str | None) -> None:
    """Print the settings in effect as TOML."""
    from fgsched import gpus
    from fgsched.config import contradictions
    from fgsched.config.contradictions import doubts
    from fgsched.config.load import load

    paths = find_paths()
    if check is None:
        write(_settings_text(load(paths), paths.config_file))
        return
    file = Path(os.path.abspath(check)) if check else paths.config_file
    if not check and not file.exists():
        write(f"{file}: there is none, so the defaults hold\n")
        return
    if not file.exists():
        raise BadUsage(f"{check}: there is no such file.")
    config = load(replace(paths, config_file=file))
    gpus.check(config)
    _report_check(check or str(file), doubts(config, contradictions.this_host()))


def _report_check(file: str, warnings: list[str]) -> None:
    """Print that a configuration file is valid, with the warnings about its settings."""
    from fgsched.config.contradictions import REMEDY

    if not warnings:
        write(f"{file}: nothing is wrong with it\n")
        return
    write(f"{file}: valid, with {len(warnings)} warning{'' if len(warnings) == 1 else 's'}\n")
    for warning in warnings:
        click.echo(f"fgsched: warning: {file}: {warning}", err=True)
    click.echo(REMEDY, err=True)


def _settings_text(config: "Config", file: Path) -> str:
    """Return a configuration file with every key, its meaning and its value in force."""
    from fgsched.config.keys import KEYS, SECTIONS

    lines = [f"# {file}" + ("" if file.exists() else " (does not exist: these are the defaults)")]
    text_table = ""
    for field, key in KEYS.items():
        if key.table != text_table:
            text_table = key.table
            lines += ["", f"[{text_table}]"]
        lines += [f"# {key.description} Takes {key.allowed}.", _setting_line(key, getattr(config, field))]
    for text_table, keys in SECTIONS.items():
        for name, entry in getattr(config, text_table).items():
            lines += ["", f"[{text_table}.{name}]"]
            values = {key: getattr(entry, field) for field, key in keys.items()}
            lines += [_setting_line(key, value) for key, value in values.items() if value != key.default]
    return "\n".join(lines) + "\n"


def _setting_line(key: "ConfigKey", value: object) -> str:
    """Return `key = value`; as a comment where the default depends on the host."""
    if key.default_text and value == key.default:
        return f"# {key.name} = … ({key.default_text})"
    return f"{key.name} = {key.form.show(value)}"


@fgsched.command("web")
@options_of("fgsched web")
def _web(**options: bool) -> None:
    """Open your page of jobs and GPUs in a browser."""
    from fgsched.cli.web import WebCommand, serve

    write(serve(WebCommand(**options)))


@fgsched.command("cron")
@options_of("fgsched cron")
def _cron(is_print: bool, install: bool, systemd: bool, to: str, metrics: str) -> None:
    """Print or install the cron jobs that mail reports."""
    from fgsched.cli import cron

    if is_print and install:
        raise BadUsage("--print and --install exclude each other")
    done = cron.run(to=to, is_install=install, is_systemd=systemd, environ=os.environ, metrics=metrics)
    write(done)


@fgsched.group("policy", cls=CommandGroup)
def _policy() -> None:
    """Carry out the policies of the site, for cron."""


@_policy.command("idle")
@options_of("fgsched policy idle")
def _idle(dry_run: bool, quiet: bool) -> None:
    """Warn users of idle GPUs, and requeue or cancel their jobs."""
    import time

    from fgsched.cli.policy import idle

    table_text = idle(is_dry=dry_run, now=time.time())
    if not quiet:
        write(table_text)


@_policy.command("strangers")
@options_of("fgsched policy strangers")
def _strangers(dry_run: bool, quiet: bool) -> None:
    """Report GPU processes of no job to the administrator, and warn their users."""
    import time

    from fgsched.cli.policy import strangers

    table_text = strangers(is_dry=dry_run, now=time.time())
    if not quiet:
        write(table_text)


@fgsched.command("init")
@options_of("fgsched init")
def _init(is_print: bool, is_check: bool, to: str, root: str) -> None:
    """Prepare the host for its users; start the controller."""
    from fgsched.cli.install.run import init

    init(root=_image(root), is_print=is_print, is_check=is_check, to=to, environ=os.environ)


@fgsched.command("uninstall")
@options_of("fgsched uninstall")
def _uninstall(purge: bool, kill: bool, root: str) -> None:
    """Remove what init made, except files changed since then."""
    from fgsched.cli.install.run import uninstall

    uninstall(root=_image(root), is_purge=purge, is_kill=kill)


def _image(text: str) -> Path:
    if not os.path.isdir(text):
        raise BadUsage(f"{text!r} is not a directory")
    return Path(os.path.realpath(text))


@fgsched.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def _completion(shell: str) -> None:
    """Print the completions of all commands, for eval in a shell."""
    from fgsched.cli import shells
    from fgsched.cli.install import slurmnames

    names = slurmnames.own_in_path(os.environ)
    write(shells.all_at_once(shell, {name: slurmnames.command_line(name) for name in names}))


@fgsched.command("help")
@click.argument("page", required=False)
def _help(page: str | None) -> None:
    """List the pages of the documentation, or show one."""
    from fgsched.cli import pages

    documentation = pages.find()
    if page is None:
        write(pages.listed(documentation))
    elif page in documentation.manuals:
        pages.show_manual(documentation.manuals[page])
    elif output().isatty():
        click.echo_via_pager(pages.read(documentation, page))
    else:
        write(pages.read(documentation, page))


@fgsched.command("slurm-names")
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


def main() -> None:
    fgsched.main(prog_name="fgsched")


if __name__ == "__main__":
    main()
