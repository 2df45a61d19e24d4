"""`fgsched init` and `fgsched uninstall`: plan, carry out, start, check, and say what was done."""

import os
import pwd
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fgsched import protocol
from fgsched.cli.command import warn, write
from fgsched.cli.install import host as hosts
from fgsched.cli.install import plan, slurmnames, wanted
from fgsched.cli.install.carry import STATE, Carrier, Manifest, below, purge, refuse_outside, run
from fgsched.cli.install.host import OPERATORS, check
from fgsched.cli.install.plan import Action, LeavePath, Make, Remove, Undo
from fgsched.cli.stopping import end_all, stop
from fgsched.client import Client, NotRunning
from fgsched.domain.errors import NotPermitted, Refused
from fgsched.gpus import vendors
from fgsched.system import cgroups, generations
from fgsched.system.paths import INITIALISED, SYSTEM_RUN, Paths

_HOST = Path("/")
_STAMPS = "/var/lib/systemd/timers"  # systemd notes there when a persistent timer elapsed
_START = "fgsched start --system"


def host_paths() -> Paths:
    """Return the paths of the host's controller."""
    return Paths.find({}, 0, system=True)


# -- init -------------------------------------------------------------------------------------------


def init(*, root: Path, is_print: bool, is_check: bool, to: str, environ: Mapping[str, str]) -> None:
    """Prepare the host, start the controller, and run a job of an ordinary user.

    Args:
        root: the directory below which files are written: "/", or that of an image.
        is_print: only print what would be done.
        is_check: run the job even if nothing was changed.
        to: the address that gets the reports.

    Raises:
        NotPermitted: the caller is not root.
        Refused: a step failed, or the job did.
    """
    if os.geteuid() != 0 and not is_print:
        raise NotPermitted("fgsched init is for root", "Run: sudo fgsched init")
    _refuse_unfit_programs(is_print=is_print)
    manifest = Manifest(root)
    host = hosts.examine(root, environ)
    actions = planned(host, manifest, root, to)
    if is_print:
        write("".join(printed(action) for action in actions) or "nothing to do\n")
        return
    for action in actions:
        write(f"{action}\n")
        if isinstance(action, plan.RunCommand) and action.key == f"enable {wanted.UNIT}":
            _make_room()
        Carrier(root, manifest, run).carry([action] if not isinstance(action, LeavePath) else [])
    if all(isinstance(action, LeavePath) for action in actions):
        write("nothing to do: everything is in place\n")
        if not is_check:
            return
    if root == _HOST:
        _finish(environ, has_systemd=host.systemd == "running")


def _refuse_unfit_programs(*, is_print: bool) -> None:
    """Refuse programs that are not fit for all users; with --print, print that, too, and continue."""
    try:
        hosts.refuse_unfit_programs()
    except Refused as refused:
        if not is_print:
            raise
        warn("fgsched", f"init would be refused: {refused.cause}", refused.remedy)


def planned(host: hosts.InstallHost, manifest: Manifest, root: Path, to: str) -> list[Action]:
    """Return the actions for this host, in their order."""
    wants, entries = wanted.wants(host, to), manifest.entries
    if root != _HOST:  # a container may mount an empty state directory over that of its image
        wants = [want for want in wants if want.path != str(INITIALISED)]
    refuse_outside(root, plan.paths(wants))
    files = plan.to_install(wants, hosts.look(root, plan.paths(wants)), entries)
    units = [file for file in files if isinstance(file, Make) and "/systemd/system/fgsched" in file.want.path]
    groups = wanted.group_commands(host, entries, str(root))
    return [*files, *groups, *wanted.unit_commands(host, entries, str(root), is_new=bool(units))]


def printed(action: Action) -> str:
    """Return an action for --print; the text of a file is indented."""
    text = action.want.text if isinstance(action, Make) and action.want.kind == "file" else ""
    return f"{action}\n" + "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())


def _make_room() -> None:
    """Stop a controller that does not belong to systemd, so that the unit can start one; jobs continue."""
    if run(("systemctl", "is-active", "--quiet", wanted.UNIT)):
        stop(host_paths())


def _finish(environ: Mapping[str, str], *, has_systemd: bool) -> None:
    """Run the job of the check if the controller is running, and print what users must know."""
    try:
        with Client(host_paths(), may_start=False) as client:
            about = client.call(protocol.Ping())
            gpus = 0 if any(client.call(protocol.ListGpus()).jobs.values()) else about.gpus
            if not Path(hosts.SENDMAIL).exists():
                missing = f"there is no {hosts.SENDMAIL}"
                write(f"no reports are mailed: {missing}; after installing one: fgsched init\n")
            problems = check(client, hosts.ordinary_user(environ, pwd.getpwall), gpus)
            write(f"\n{problems}\n\n{_advice(about)}")
    except NotRunning:
        if has_systemd:
            raise Refused(
                f"nothing was checked: {wanted.UNIT} is {_state_of_unit()}, so the controller does not run",
                f"Run: systemctl start {wanted.UNIT}, then: fgsched init --check",
            ) from None
        write(f"\nsystemd does not run here. Start the controller:\n  {_START}\n  fgsched init --check\n")


def _state_of_unit() -> str:
    words = ("systemctl", "show", "--property=ActiveState", "--value", wanted.UNIT)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "in an unknown state"


def _advice(about: protocol.About) -> str:
    kind = "simulated GPU" if not vendors.named(about.source).facts.is_real else "GPU"
    return (
        f"Tell the users of this host ({about.gpus} {kind}{'' if about.gpus == 1 else 's'}):\n"
        "  fginfo                                  see the GPUs\n"
        "  fgsub --gpus=0.5 --time=2:00:00 job.sh  submit a job with half a GPU\n"
        "  fgq --me, fgtail JOB, fgcancel JOB      see, follow and cancel jobs\n"
        "  man fgsub                               read everything else\n"
        f"Operators: gpasswd -a USER {OPERATORS}. Settings: {wanted.CONFIG}\n"
    )


# -- uninstall --------------------------------------------------------------------------------------


def uninstall(*, root: Path, is_purge: bool, is_kill: bool) -> None:
    """Take away what `fgsched init` made.

    Args:
        is_purge: remove the queue and the accounts as well.
        is_kill: cancel all jobs first.

    Raises:
        NotPermitted: the caller is not root.
        Refused: jobs are running whose state would be removed.
    """
    if os.geteuid() != 0:
        raise NotPermitted("fgsched uninstall is for root", "Run: sudo fgsched uninstall")
    manifest = Manifest(root)
    if root == _HOST:
        _end_controller(is_purge=is_purge, is_kill=is_kill)
    elif is_kill:
        raise Refused("an image has no jobs", "Leave out --kill.")
    refuse_outside(root, [str(SYSTEM_RUN), *manifest.files])
    _remove_names(root, manifest)
    actions = plan.to_remove(manifest.entries, hosts.look(root, manifest.entries))
    if not manifest.exists:
        write("fgsched init has made nothing here\n")
    for step in actions:
        action = _possible(step, root)
        if not (isinstance(action, Remove) and action.path == STATE):  # it stays while it has files
            write(f"{action}\n")
        Carrier(root, manifest, run).carry([action])
    if root == _HOST and any(
        isinstance(action, Undo) and action.words[0] == "systemctl" for action in actions
    ):
        run(("systemctl", "daemon-reload"))
    manifest.close()
    _remove_what_others_noted(root)
    if is_purge:
        for line in purge(root):
            write(line)
    elif below(root, STATE).exists():
        write(f"the queue and the accounts stay in {STATE}; fgsched uninstall --purge removes them\n")


def _remove_names(root: Path, manifest: Manifest) -> None:
    """Remove the names of Slurm that root has installed on the host; those in a user's directories stay."""
    for folder in slurmnames.folders(manifest.name_folders, os.environ) if root == _HOST else ():
        write(slurmnames.remove(folder))


def _possible(action: Action, root: Path) -> Action:
    """Return an action, or that a directory is kept because files are left in it."""
    match action:
        case Remove(path, "directory") if path != STATE and any(below(root, path).iterdir()):
            return LeavePath(path, "it is not empty")
    return action


def _remove_what_others_noted(root: Path) -> None:
    """Remove the stamps of the timers, which systemd makes, and the empty cgroups of jobs."""
    for stamp in below(root, _STAMPS).glob("stamp-fgsched-*.timer"):
        stamp.unlink()
    if root == _HOST:
        cgroups.remove_left()


def _end_controller(*, is_purge: bool, is_kill: bool) -> None:
    """Stop the host's controller if it is running. Raises Refused."""
    try:
        with Client(host_paths(), may_start=False) as client:
            jobs = client.call(protocol.ListGpus()).jobs
            if is_kill:
                end_all(client)
            elif is_purge and (count := sum(jobs.values())):
                jobs_are = "job is" if count == 1 else "jobs are"
                raise Refused(
                    f"{count} {jobs_are} not over, and --purge would remove their queue",
                    "Wait for them, or cancel them: fgsched uninstall --purge --kill",
                )
    except NotRunning:
        if is_purge or is_kill:
            _refuse_while_jobs_run()
        return
    write(stop(host_paths()))


def _refuse_while_jobs_run() -> None:
    """Refuse to remove the queue of jobs that run without a controller. Raises Refused."""
    run = host_paths().run
    want_list = [
        job.job
        for place in (generations.others(run, Path()) if run.is_dir() else ())
        for job in generations.living_jobs(place)
    ]
    if want_list:
        raise Refused(
            f"the controller is stopped, and jobs still run: {', '.join(map(str, want_list))}",
            "Wait for their end, or start the controller to cancel them: fgsched start --system (or systemctl"
            " start fgsched), then fgsched uninstall --purge --kill",
        )
