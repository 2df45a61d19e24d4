"""fgctl: show and change jobs, GPUs, partitions and reservations, as scontrol does."""

import os
from collections.abc import Sequence

import click

from fgsched import protocol
from fgsched.cli import show
from fgsched.cli.command import CommandGroup, note, options_of, output, run, warn, write
from fgsched.cli.reservation import is_about_reservation, new_name, reservation_call
from fgsched.client import Client, find_paths
from fgsched.domain.errors import BadUsage, Exit, FgschedError
from fgsched.domain.text import shown, word_list
from fgsched.domain.units import parse_ids, parse_indices
from fgsched.protocol import Call, Outcome, Outcomes
from fgsched.system.places import create_own
from fgsched.views import choices, documents

_UNBUILT = word_list("shutdown takeover reboot setdebug abort token completing version")
_jobs = click.argument("words", nargs=-1, required=True, metavar="ID|FIRST-LAST...")


@click.group(cls=CommandGroup, epilog="fgctl show job 7", unbuilt=_UNBUILT)
def fgctl() -> None:
    """Show and change jobs, GPUs, partitions and reservations."""


class _RecordKind(click.Choice):  # type: ignore[type-arg]  # it has no parameter before click 8.2
    """A kind of record; its plural and the name of its id are accepted too, as by scontrol."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        bare = value.lower()
        kinds = (kind for kind in self.choices if bare in (f"{kind}s", f"{kind}id", f"{kind}name"))
        return str(super().convert(next(kinds, bare), param, ctx))


@fgctl.command("show")
@options_of("fgctl show")
@click.argument("what", type=_RecordKind(["job", "gpu", "partition", "reservation", "config", "log"]))
@click.argument("words", nargs=-1, metavar="[ID]")
def _show(what: str, words: Sequence[str], oneliner: bool, as_json: bool) -> None:
    """Show jobs, GPUs, partitions, reservations or the log."""
    if what == "log":
        _show_log(words, as_json=as_json)
        return
    with Client(find_paths()) as client:
        records = show.ASKED[what](client, words)
    if as_json:
        write(show.document(what, records))
        return
    groups = [show.GROUPS[what](record) for record in records]
    write(documents.text(groups, oneliner=oneliner))


def _show_log(words: Sequence[str], *, as_json: bool) -> None:
    from fgsched.cli import logs

    with Client(find_paths(), may_start=False) as client:  # a new controller has no lines to show
        lines = logs.asked(client, words)
    write(logs.document(lines) if as_json else logs.text(lines))


def _each(call: Call[Outcomes]) -> int:
    """Send a request about several jobs; return the largest exit status of the failures, 0 without any."""
    with Client(find_paths()) as client:
        return _reported(client.call(call).jobs)


def _reported(outcomes: Sequence[Outcome]) -> int:
    """Print the errors and the warnings; the largest exit status."""
    for text in dict.fromkeys(text for outcome in outcomes for text in outcome.warnings):
        note("fgctl", f"warning: {text}")
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    for error in errors:
        warn("fgctl", error.cause, error.remedy)
    return max((error.exit for error in errors), default=Exit.DONE)


@fgctl.command("backup")
@click.argument("file", type=click.Path())
def _backup(file: str) -> None:
    """Copy the queue and the accounts into a new file."""
    call = protocol.BackUp(file=os.path.abspath(file))
    with Client(find_paths()) as client:
        archive_contents = client.call(call, patience=None)
    write(f"{call.file}: {archive_contents.bytes} bytes\n")


@fgctl.command("archive")
@options_of("fgctl archive")
@click.argument("file", type=click.Path())
def _archive(before: str, file: str) -> None:
    """Move old jobs and samples from the accounts to another file."""
    import time

    from fgsched.domain.times import parse_time

    at = int(parse_time(before, time.time()))
    with Client(find_paths()) as client:
        archive_contents = client.call(
            protocol.ArchiveJobs(file=os.path.abspath(file), before=at), patience=None
        )
    write(f"{os.path.abspath(file)}: {archive_contents.jobs} jobs moved\n")


@fgctl.command("subscribe")
@options_of("fgctl subscribe")
def _subscribe(as_json: bool) -> None:
    """Print the events of jobs and GPUs as they happen."""
    from fgsched.cli.runningjob import subscribe

    subscribe(output(), as_json=as_json)


@fgctl.command("hold")
@_jobs
def _hold(words: Sequence[str]) -> int:
    """Hold pending jobs."""
    return _each(protocol.HoldJobs(ids=choices.ids(words)))


@fgctl.command("uhold", hidden=True)
@_jobs
def _uhold(words: Sequence[str]) -> int:
    """Hold jobs; their owner can release them."""
    return _each(protocol.UserHold(ids=choices.ids(words)))


@fgctl.command("release")
@_jobs
def _release(words: Sequence[str]) -> int:
    """Release held jobs."""
    return _each(protocol.Release(ids=choices.ids(words)))


@fgctl.command("requeue")
@_jobs
def _requeue(words: Sequence[str]) -> int:
    """End running jobs and requeue them."""
    return _each(protocol.Requeue(ids=choices.ids(words)))


@fgctl.command("requeuehold", hidden=True)
@_jobs
def _requeuehold(words: Sequence[str]) -> int:
    """Requeue jobs and hold them."""
    return _each(protocol.Requeue(ids=choices.ids(words), hold=True))


@fgctl.command("suspend")
@_jobs
def _suspend(words: Sequence[str]) -> int:
    """Suspend running jobs; they keep their allocations."""
    return _each(protocol.Suspend(ids=choices.ids(words)))


@fgctl.command("update")
@click.argument("words", nargs=-1, required=True, metavar="job=ID|partition=|reservation=NAME KEY=VALUE...")
def _update(words: Sequence[str]) -> int:
    """Change jobs, a partition or a reservation."""
    from fgsched.cli.changes import is_about_partition, read_changes, words_by_key

    if is_about_reservation(words):
        return _reservation("update", words)
    if is_about_partition(words):
        return _partition("update", words)
    fields = words_by_key(words)
    named = [fields.pop(key) for key in ("job", "jobid") if key in fields]
    if fields.keys() & {"nodename", "node"}:
        from fgsched.cli.changes import update_node

        with Client(find_paths()) as client:
            update_node(client, fields)
        return Exit.DONE
    if "gpu" in fields and not named:
        raise BadUsage("update changes no GPU", "fgctl drain gpu=N reason=TEXT and fgctl resume gpu=N.")
    if len(named) != 1:
        raise BadUsage("update needs job=ID once", "fgctl update job=7 timelimit=2h")
    ids = choices.ids(named)
    with Client(find_paths()) as client:
        changes = read_changes(fields, client.call(protocol.Ping()).site)
        worst = int(Exit.DONE)
        for job_id in ids:
            try:
                outcome = client.call(protocol.Update(id=job_id, changes=changes))
                worst = max(worst, _reported([outcome]))
            except FgschedError as error:
                warn("fgctl", error.cause, error.remedy)
                worst = max(worst, error.exit_code)
    return worst


def _partition(verb: str, words: Sequence[str]) -> int:
    from fgsched.cli.changes import partition_call

    call = partition_call(verb, words)
    with Client(find_paths()) as client:
        answer = client.call(call)
    for warning in answer.warnings:
        note("fgctl", f"warning: {warning}")
    return Exit.DONE


def _reservation(verb: str, words: Sequence[str]) -> int:
    with Client(find_paths()) as client:
        client.call(reservation_call(client, verb, words))
    return Exit.DONE


def _unnamed_reservation(words: Sequence[str]) -> int:
    with Client(find_paths()) as client:
        name = new_name(client, words)
        client.call(reservation_call(client, "create", [f"reservation={name}", *words]))
    write(f"Reservation created: {name}\n")
    return Exit.DONE


def _site(verb: str, words: Sequence[str]) -> int:
    """Replace 'reservation NAME …' by 'reservation=NAME …', as scontrol does. A new one may have no name."""
    if words[0].lower() in ("reservation", "partition"):
        kind, operands = words[0].lower(), words[1:]
        is_named = bool(operands) and "=" in operands[0]
        if (verb, kind) == ("create", "reservation") and is_named and not is_about_reservation(operands):
            return _unnamed_reservation(operands)
        words = operands if is_named else [f"{kind}={operands[0]}" if operands else kind, *operands[1:]]
    if is_about_reservation(words):
        return _reservation(verb, words)
    return _partition(verb, words)


@fgctl.command("create")
@click.argument("words", nargs=-1, required=True, metavar="partition=NAME|reservation=NAME [KEY=VALUE]...")
def _create(words: Sequence[str]) -> int:
    """Create a partition or a reservation."""
    return _site("create", words)


@fgctl.command("delete")
@click.argument("words", nargs=-1, required=True, metavar="partition=NAME|reservation=NAME")
def _delete(words: Sequence[str]) -> int:
    """Delete a created partition or a reservation."""
    return _site("delete", words)


@fgctl.command("reconfigure")
def _reconfigure() -> None:
    """Make the controller reread its configuration file."""
    with Client(find_paths()) as client:
        answer = client.call(protocol.Reconfigure())
    for name in answer.later:
        note("fgctl", f"{name} takes effect after the controller is restarted")
    for warning in answer.warnings:
        note("fgctl", f"warning: {warning}")


@fgctl.command("top")
@_jobs
def _top(words: Sequence[str]) -> int:
    """Move pending jobs to the front of their owner's jobs."""
    worst = int(Exit.DONE)
    with Client(find_paths()) as client:
        for job_id in reversed([job for word in words for job in parse_ids(word)]):
            try:
                client.call(protocol.PutFirst(id=job_id))
            except FgschedError as error:
                warn("fgctl", error.cause, error.remedy)
                worst = max(worst, error.exit_code)
    return worst


def _gpu_words(words: Sequence[str], *allowed: str) -> dict[str, str]:
    from fgsched.cli.changes import words_by_key

    gpu_words = words_by_key(words)
    if unknown := set(gpu_words) - {"gpu", *allowed}:
        raise BadUsage(f"{shown(min(unknown))} is not one of {' '.join(('gpu', *allowed))}")
    if "gpu" not in gpu_words:
        raise BadUsage("gpu=N is missing", "fginfo -g lists the GPUs.")
    return gpu_words


def _gpus(client: Client, text: str) -> Sequence[int]:
    """Return the GPUs of a list of indices, or all GPUs of the host for "all"."""
    if text.lower() == "all":
        return [row.gpu.index for row in client.call(protocol.ListGpus()).gpus]
    return parse_indices(text)


@fgctl.command("drain")
@click.argument("words", nargs=-1, required=True, metavar="gpu=N reason=TEXT")
def _drain(words: Sequence[str]) -> None:
    """Drain GPUs: start no new jobs on them."""
    gpu_words = _gpu_words(words, "reason")
    with Client(find_paths()) as client:
        for index in _gpus(client, gpu_words["gpu"]):
            client.call(protocol.DrainGpu(gpu=index, reason=gpu_words.get("reason", "")))


@fgctl.command("resume")
@click.argument("words", nargs=-1, required=True, metavar="ID...|gpu=N")
def _resume(words: Sequence[str]) -> int:
    """Resume suspended jobs or drained GPUs."""
    if not any("=" in word for word in words):
        return _each(protocol.ResumeJobs(ids=choices.ids(words)))
    with Client(find_paths()) as client:
        for index in _gpus(client, _gpu_words(words)["gpu"]):
            client.call(protocol.ResumeGpu(gpu=index))
    return Exit.DONE


@fgctl.command("attach")
@click.argument("word", metavar="ID")
def _attach(word: str) -> int:
    """Follow a running job: its terminal, or its output files."""
    from fgsched.cli import runningjob

    with Client(find_paths()) as client:
        return runningjob.attach(client, _single(word))


def _single(word: str) -> int | str:
    """Return the id of one job. Raises BadUsage."""
    ids = choices.ids([word])
    if len(ids) != 1:
        raise BadUsage(f"{shown(word)} names {len(ids)} jobs; give one")
    return ids[0]


@fgctl.command("wait_job", hidden=True)
@click.argument("word", metavar="ID")
def _wait_job(word: str) -> None:
    """Wait until a job runs."""
    from fgsched.cli.runningjob import wait_until_running

    with Client(find_paths()) as client:
        wait_until_running(client, _single(word))


@fgctl.command("notify", hidden=True)
@click.argument("word", metavar="ID")
@click.argument("message", nargs=-1, required=True)
def _notify(word: str, message: Sequence[str]) -> None:
    """Write a message into the error file of a running job."""
    from fgsched.cli.runningjob import notify

    notify(_single(word), " ".join(message))


@fgctl.command("listpids", hidden=True)
@click.argument("word", metavar="ID")
def _listpids(word: str) -> None:
    """List the processes of a running job."""
    with Client(find_paths()) as client:
        lines = [
            f"{pid} {job_id}\n"
            for job_id in choices.ids([word])
            for pid in client.call(protocol.ListPids(id=job_id)).pids
        ]
    write("".join(["PID JOBID\n", *lines]))


@fgctl.command("pidinfo")
@options_of("fgctl pidinfo")
@click.argument("word", metavar="PID")
def _pidinfo(word: str, oneliner: bool, as_json: bool) -> None:
    """Show the job, the step and the GPU memory of a process."""
    from fgsched.cli import processes

    with Client(find_paths()) as client:
        host_process = processes.find(client, word)
    write(processes.document(host_process) if as_json else processes.text(host_process, oneliner=oneliner))


@fgctl.command("adopt")
@options_of("fgctl adopt")
@click.argument("word", metavar="PID")
def _adopt(word: str, indices: str, **options: str | None) -> None:
    """Make a process that was started outside of fgsched a job."""
    from fgsched.cli import processes

    option_texts = {name.replace("_", "-"): text for name, text in options.items() if text is not None}
    with Client(find_paths()) as client:
        write(processes.adopt(client, word, option_texts, indices))


@fgctl.command("write", hidden=True)
@click.argument("what", type=click.Choice(["batch_script"]))
@click.argument("word", metavar="ID")
@click.argument("file", default="", metavar="[FILE|-]")
def _write(what: str, word: str, file: str) -> None:
    """Write a job's script to a file; default: fg-ID.sh."""
    ids = choices.ids([word])
    if len(ids) != 1:
        raise BadUsage(f"{shown(word)} names {len(ids)} jobs; give one")
    with Client(find_paths()) as client:
        script = client.call(protocol.ShowScript(id=ids[0])).script.encode(errors="surrogateescape")
    if file == "-":
        output().buffer.write(script)
        return
    path = file or f"fg-{ids[0]}.sh"
    try:
        with open(create_own(path, 0o777), "wb") as out:
            out.write(script)
    except OSError as error:
        raise BadUsage(f"cannot write {shown(path)}: {error.strerror}") from None
    write(f"batch script for job {ids[0]} written to {path}\n")


@fgctl.command("ping", hidden=True)
def _ping() -> None:
    """Check whether the controller answers."""
    with Client(find_paths(), may_start=False) as client:
        about = client.call(protocol.Ping())
    write(f"the controller at {about.host} is UP (pid {about.pid}, version {about.version})\n")


def main() -> None:
    run(fgctl)


if __name__ == "__main__":
    main()
