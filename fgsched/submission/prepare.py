"""Prepare one submission: script, request, environment, and warnings."""

import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, structs

from fgsched import codec
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import NO_LIMIT, WHOLE, EarlySignal, Request
from fgsched.domain.text import BadValue, lazy_regex, quoted, shown
from fgsched.domain.units import SubmitContext
from fgsched.domain.vendor import VendorFacts
from fgsched.gpus import vendors
from fgsched.lifecycle.arrays import parse_array
from fgsched.lifecycle.containers import is_path
from fgsched.lifecycle.filenames import PatternValues, is_one_for_all, left_alone, needs_the_user
from fgsched.lifecycle.jobscript import UnreadLine, command_line, directives
from fgsched.lifecycle.jobvariables import outer_job, without_outer_job
from fgsched.protocol import Flags
from fgsched.submission import jobwarnings, options, table
from fgsched.submission.checks import NoScript, Process, Source
from fgsched.submission.options import AnySetting, Setting, Settings, demand
from fgsched.submission.table import BY_NAME

# -- the variables of the submitter that the job gets (--export) -----------------------------------


_LARGEST = 1 << 20  # bytes of a job's environment
_LARGEST_VARIABLE = 128 << 10  # the kernel's limit for one string of exec
_LONGEST_CHARACTER = 4  # bytes
_NAME = lazy_regex(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = lazy_regex(r"""((?:[^,'"]|'[^']*'|"[^"]*"|['"])*)(,|$)""", re.DOTALL)
_QUOTED = lazy_regex(r"""'([^']*)'|"([^"]*)\"""", re.DOTALL)
_PATH = "/usr/local/bin:/usr/bin:/bin"
_LOGIN = ("HOME", "USER", "LOGNAME", "SHELL")
_HOOK = "libfgshim.so"


def exported(text: str, environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the environment that `--export=text` gives a job, and warnings. Raises BadValue.

    A value in the list overrides that of the submitter. Variables of the job in which the submitter runs are
    not passed on, unless the list names them.
    """
    warnings: list[str] = []
    sane, junk = _sane(environ)
    if junk:
        warnings.append(f"{junk} entries of the environment have no proper name and were dropped")
    result: dict[str, str] = {}
    explicit: dict[str, str] = {}
    for name, value in _tokens(text):
        if value is None and name.upper() == "ALL":
            result = without_outer_job(sane, vendors.variables_of_jobs)
        elif value is None and name.upper() == "NONE":
            result = _login(sane)
        elif not _NAME.fullmatch(name):
            raise BadValue(text, f": {shown(name)} is not a variable's name")
        elif value is not None:
            explicit[name] = value
        elif name in sane:
            explicit[name] = sane[name]
        else:
            warnings.append(f"--export: {name} is not set, so the job will not have it")
    result = _without_hook({**result, **explicit})
    _check_size(result)
    return result, warnings


def _tokens(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield (name, value) of each part; commas inside quotes belong to the value."""
    at = 0
    while at <= len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # the pattern also matches nothing
        name, equals, value = match[1].partition("=")
        yield name, _QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", value) if equals else None
        if not match[2]:
            return
        at = match.end()


def _sane(environ: Mapping[str, str]) -> tuple[dict[str, str], int]:
    kept_variables = {
        name: value
        for name, value in environ.items()
        if name and "=" not in name and "\0" not in name and "\0" not in value
    }
    return kept_variables, len(environ) - len(kept_variables)


def _login(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a minimal login environment from the variables of the submitter's session."""
    return {"PATH": _PATH, **{name: environ[name] for name in _LOGIN if name in environ}}


def _without_hook(environment: dict[str, str]) -> dict[str, str]:
    """Remove the hook of the submitting job: it would count against that job's share."""
    preload = environment.get("LD_PRELOAD", "")
    if _HOOK not in preload:
        return environment
    paths = [path for path in re.split(r"[ :]+", preload) if path and not path.endswith(f"/{_HOOK}")]
    others = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
    return {**others, "LD_PRELOAD": ":".join(paths)} if paths else others


def _check_size(environment: Mapping[str, str]) -> None:
    """Refuse an environment that exec or the controller would refuse. Raises BadUsage."""
    characters = sum(map(len, environment)) + sum(map(len, environment.values())) + 2 * len(environment)
    if characters * _LONGEST_CHARACTER <= _LARGEST_VARIABLE:
        return
    total = 0
    for name, value in environment.items():
        size = len(name) + len(value.encode("utf-8", "surrogateescape")) + 2
        if size > _LARGEST_VARIABLE:
            raise BadUsage(
                f"--export: the variable {shown(name)} is {size} bytes; limit {_LARGEST_VARIABLE}",
                "Put it into a file, or leave it out with --export=A,B,….",
            )
        total += size
    if total > _LARGEST:
        raise BadUsage(
            f"--export: the environment is {total} bytes; limit {_LARGEST}",
            "Export only what the job needs: --export=A,B=x, or --export=NONE.",
        )


# -- the submission --------------------------------------------------------------------------------


_AFTER_LOGIN = str(Path(__file__).parents[1] / "slurm" / "login.sh")  # puts Slurm's names into PATH again


def _is_login_shell(script: str | bytes) -> bool:
    """Tell whether a script is run by a login shell, whose profiles set PATH."""
    first = script[:256] if isinstance(script, str) else script[:256].decode(errors="replace")
    words = first.partition("\n")[0].split()
    return len(words) > 1 and words[0].endswith("bash") and ("--login" in words or "-l" in words[1])


def flags_of(settings: Settings) -> Flags:
    return Flags(
        parsable=settings.value(table.PARSABLE, False),
        quiet=settings.value(table.QUIET, False),
        json=settings.value(table.JSON, False),
        wait=settings.value(table.WAIT, False),
        explain=settings.value(table.EXPLAIN, False),
        test=settings.value(table.TEST_ONLY, False),
    )


_LONGEST_LINE = 4096  # characters of a submit line that are kept
_DEFAULTS = {
    **{
        "time": "unlimited",
        "chdir": ".",
        "error": "with the output",
    },
    **{"input": "/dev/null", "open-mode": "truncate", "export": "ALL", "cpus-per-task": "1", "gpus": "0"},
}


class Submission(Struct, frozen=True, kw_only=True):
    """The data that the controller needs to queue a job."""

    request: Request
    script: bytes
    environment: dict[str, str]
    hold: bool
    inside: int = 0  # id of the job in which the submitter runs; 0: none


class Prepared(Struct, frozen=True, kw_only=True):
    submission: Submission
    warnings: tuple[str, ...]
    flags: Flags
    partition: str = "main"  # of a job that names none
    place: str = ""  # file and line of a list of submissions
    settings: Settings = Settings()

    def explained(self) -> list[tuple[str, str, str]]:
        """Return (option, value, source) of each value in effect, for --explain-options."""
        rows = {name: (f"--{name}", text, "default") for name, text in _DEFAULTS.items()}
        rows["partition"] = ("--partition", self.partition, "default")
        rows["output"] = ("--output", self.submission.request.output, "default")
        rows["job-name"] = ("--job-name", self.submission.request.name, "default")
        for slot, setting in self.settings.items():
            text = setting.text or ("yes" if setting.value else "no")
            rows[slot] = (f"--{setting.option.name}", text, setting.origin)
        return sorted(rows.values())


def prepare_in_foreground(
    argv_options: Sequence[AnySetting], *, environ: Mapping[str, str], cwd: str, site: SubmitContext
) -> Prepared:
    """Return the submission of a command of fgrun, for which the variables of sbatch have no effect.

    Raises BadUsage.
    """
    submitter = SubmissionPreparer(Process(environ, cwd), site=site, is_batch=False)
    return submitter.prepare(argv_options, ())


class Surroundings(Protocol):
    """What a submission takes from the process that submits it."""

    @property
    def environ(self) -> Mapping[str, str]:
        """Return the variables of the process."""

    @property
    def cwd(self) -> str:
        """Return the current directory of the process."""

    @property
    def umask(self) -> int:
        """Return the umask of the process."""

    @property
    def rlimits(self) -> tuple[tuple[int, int, int], ...]:
        """Return (resource, soft, hard) of every resource limit; -1 is unlimited."""

    def account(self) -> tuple[str, str]:
        """Return name and home directory of the caller."""

    def moment(self, text: str) -> tuple[float, str]:
        """Return a time in seconds since the epoch, and a remark about it; "" if there is none."""

    def script(self, word: str | None, directory: str) -> Source:
        """Read the script that `word` names, or standard input; jobs run in `directory`. Raises BadUsage."""

    def job_directory(self, setting: AnySetting | None) -> str:
        """Return an absolute directory that the submitter can enter. Raises BadUsage."""

    def check_interpreter(self, name: str, data: bytes, directory: str, path: str) -> None:
        """Refuse a script whose interpreter cannot be executed. Raises BadUsage."""

    def check_container(self, setting: AnySetting, image: str, environ: Mapping[str, str]) -> None:
        """Refuse an image that does not exist, or that no container runtime of the host can run.

        Raises: BadValue, Refused.
        """

    def is_file(self, path: str) -> bool:
        """Tell whether a path, which can be relative to the current directory, is a file."""

    def is_writable(self, directory: str) -> bool:
        """Tell whether the submitter can create files in a directory."""

    def check_input(self, setting: AnySetting, values: PatternValues, chdir: str) -> str:
        """Return a warning about an input file that the submitter cannot read; "" if there is none."""

    def check_output(self, setting: AnySetting, values: PatternValues, chdir: str, *, make: bool) -> str:
        """Check that the directory of an output file exists, or create it with `make`. Raises BadUsage.

        Return a warning; "" if there is none.
        """


class _Script(Struct, frozen=True, eq=False):
    """A script and the settings of its headers."""

    name: str  # of the job
    data: bytes
    settings: Settings
    warnings: tuple[str, ...] = ()
    slurm: bool = False  # it is written for Slurm
    program: str = ""  # "": a script; else how a shell calls the program
    label: str = ""  # as messages call it
    unread: tuple[UnreadLine, ...] = ()


class SubmissionPreparer:
    """Prepares several submissions of one call; shared parts are read once."""

    def __init__(
        self,
        here: Surroundings,
        *,
        site: SubmitContext,
        common: Sequence[AnySetting] = (),
        is_batch: bool = True,
        name: str = "fgsub",
        vendor: VendorFacts | None = None,
    ) -> None:
        """Read the variables that are options.

        Args:
            common: defaults of the call, which the settings of a submission override.
            is_batch: the input variables of sbatch have effect, too.
            name: the command; with sbatch, the defaults are those of Slurm.
            vendor: of the host's GPUs; None: it is looked up.
        """
        self._here = here
        self._site = site
        self._name = name
        self._vendor = vendor or vendors.of_host().facts
        settings, warnings = options.from_environment(here.environ)
        self._common = list(common)
        self._before = Settings({**options.latest(settings), **options.latest(common)})
        of_slurm, self._slurm_warnings = (
            options.from_slurm_environment(here.environ) if is_batch else ([], list[str]())
        )
        self._before_as_slurm = Settings({**options.latest(of_slurm), **self._before})
        self._warnings = tuple(warnings)
        self._scripts: dict[tuple[str | None, str, bool, bool], _Script] = {}
        self._environments: dict[str, tuple[dict[str, str], list[str]]] = {}
        self._plans: dict[tuple[object, ...], Prepared] = {}
        self._limits: dict[str, Any] = {"umask": here.umask, "rlimits": here.rlimits}

    @property
    def _is_slurm(self) -> bool:
        return self._name == "sbatch"

    def prepare(self, settings: Sequence[AnySetting], words: Sequence[str]) -> Prepared:
        latest = options.latest(settings)
        ignores_slurm = "ignore-sbatch" in latest or "ignore-sbatch" in self._before
        before = Settings(self._before if ignores_slurm else self._before_as_slurm)
        before.update(latest)
        warnings = [] if ignores_slurm else self._slurm_warnings
        script = self._script(before.get("wrap"), words, before)
        line = submit_line([self._name, *_spelled(self._common), *_spelled(settings), *words])
        key = (script, *((setting.option.name, setting.text) for setting in settings))
        plan = self._plans.get(key)
        if plan is None:
            chosen = options.with_tres(Settings({**script.settings, **before}))
            notes = [*self._known_partition(chosen), *self._known_reservation(chosen)]
            plan = self._plan(script, Settings(self._of_partition(chosen) | chosen), words[1:], line)
            all_warnings = (*plan.warnings, *warnings, *notes)
            plan = self._plans[key] = _recorded(structs.replace(plan, warnings=all_warnings), self._is_slurm)
            return plan
        return _with_words(plan, script, words[1:], line)

    def _known_partition(self, settings: Settings) -> list[str]:
        """Remove an unknown partition, if the site then lets jobs run in its default; return a warning."""
        if "partition" not in settings or "partition" not in self._site.ignores:
            return []
        names = settings["partition"].text.split(",")
        if all(name in self._site.partitions for name in names):
            return []
        label = settings.pop("partition").text
        return [f"--partition={label}: no such partition here; the job runs in {self._site.partition}"]

    def _known_reservation(self, settings: Settings) -> list[str]:
        """Remove an unknown reservation, if the site then lets jobs run without it; return a warning."""
        setting = settings.get("reservation")
        if setting is None or "reservation" not in self._site.ignores:
            return []
        if setting.text in self._site.reservations:
            return []
        del settings["reservation"]
        is_unsaid = "reservation" in self._site.unsaid
        return [] if is_unsaid else [f"--reservation={setting.text}: ignored, no such reservation here"]

    def _of_partition(self, settings: Settings) -> dict[str, AnySetting]:
        """Return the defaults of the partition; its GPUs only if none are requested."""
        name = _text(settings, "partition", self._site.partition).partition(",")[0]
        of_partition = self._site.defaults.get(name, {})
        asks = "gpus" in settings or "gpu-mem" in settings
        return {
            BY_NAME[own_option].slot: Setting(
                BY_NAME[own_option], text, BY_NAME[own_option].parse(text), f"partition {name}"
            )
            for own_option, text in of_partition.items()
            if not (asks and own_option in ("gpus", "gpu-mem"))
        }

    def _script(self, wrap: AnySetting | None, words: Sequence[str], before: Settings) -> _Script:
        if wrap is not None:
            if words:
                raise BadUsage(f"--wrap takes no script and no arguments; remove {quoted(words[0])}")
            return _Script("wrap", _wrapped(wrap.text), Settings(), slurm=self._is_slurm)
        word = words[0] if words and words[0] != "-" else None
        directory = self._here.job_directory(before.get("chdir"))
        key = (word, directory, "ignore-sbatch" in before, "ignore-pbs" in before)
        if key not in self._scripts:
            self._scripts[key] = self._read(*key, before.values())
        return self._scripts[key]

    def _source(self, word: str | None, directory: str, settings: Iterable[AnySetting]) -> Source:
        """Return the text of the script. Raises BadUsage, with the option that has taken its name."""
        try:
            return self._here.script(word, directory)
        except NoScript:
            for option, value in options.files_as_values(settings):
                if value and self._here.is_file(value):
                    raise BadUsage(
                        f"no script given: {shown(value)} is the value of {option}",
                        f"Name the script after that value: {self._name} {option}=VALUE {shown(value)}",
                    ) from None
            raise

    def _read(
        self,
        word: str | None,
        directory: str,
        ignore_sbatch: bool,
        ignore_pbs: bool,
        settings: Iterable[AnySetting],
    ) -> _Script:
        source = self._source(word, directory, settings)
        if source.program:
            name = os.path.basename(source.program)
            return _Script(name, b"", Settings(), program=source.program, slurm=self._is_slurm)
        script_lines = directives(
            source.data, source.name, ignore_sbatch=ignore_sbatch, ignore_pbs=ignore_pbs
        )
        settings, warnings = options.from_script(script_lines, source.name)
        return _Script(
            name=self._name if word is None else os.path.basename(word),
            data=source.data,
            settings=options.latest(settings, strict=True),
            warnings=(*script_lines.warnings, *warnings),
            slurm=script_lines.family == "SBATCH" or self._is_slurm,
            label=source.name,
            unread=script_lines.unread,
        )

    def _plan(self, script: _Script, settings: Settings, args: Sequence[str], line: str) -> Prepared:
        """Prepare a submission; `line` is its command line as it is kept with the job."""
        chdir = self._here.job_directory(settings.get("chdir"))
        name = _text(settings, "job-name", script.name)
        environment, warnings = self._environment(settings.get("export"))
        if script.label and "container" not in settings:
            self._here.check_interpreter(script.label, script.data, chdir, environment.get("PATH", _PATH))
        request = self._request(
            settings, _of_words(script, args, line), chdir=chdir, name=name, slurm=script.slurm
        )
        if request.container:
            self._here.check_container(settings["container"], request.container, environment)
        if request.slurm_env:
            environment = environment | by_option(settings, request)
            if _is_login_shell(script.data):
                environment = {"BASH_ENV": _AFTER_LOGIN, **environment}
        warnings = [*warnings, *self._about(script, settings, request)]
        return Prepared(
            submission=Submission(
                request=request,
                script=_text_of(script, args),
                environment=environment,
                hold=settings.value(table.HOLD, False),
                inside=outer_job(self._here.environ),
            ),
            warnings=(*self._warnings, *script.warnings, *warnings),
            flags=flags_of(settings),
            partition=self._site.partition,
            settings=settings,
        )

    def _about(self, script: _Script, settings: Settings, request: Request) -> Iterator[str]:
        """Yield warnings about a job. Raises BadUsage for what cannot work."""
        has_gpus = not {"gpus", "gpu-mem"}.isdisjoint(settings)
        yield from jobwarnings.about_unread(script.unread, script.label, has_gpus=has_gpus)
        name, selection = script.label or "--wrap", self._vendor.selection
        yield from jobwarnings.about_own_gpus(script.data, name, request.demand.gpus, selection)
        yield from filter(None, self._check_outputs(settings, request))
        yield from jobwarnings.about_labels(settings, self._site)
        yield from jobwarnings.about_controller(self._here.environ, self._here.rlimits, self._site)
        if "mem" in settings:
            yield from jobwarnings.about_number(settings["mem"])
        yield from jobwarnings.about_signal(settings)
        yield from options.ignored_features(settings, self._site)
        yield from options.ignored_resources(settings, self._site)
        if "begin" in settings:
            _, remark = self._here.moment(settings["begin"].text)
            yield from jobwarnings.about_begin(settings["begin"], remark)
        if "ignored" in settings:
            listed = settings["ignored"].text.replace(" ", ", ")
            yield f"ignored, without effect here: {listed}"
        for slot in ("output", "error", "input"):
            yield from (
                f"--{slot}: {item} is left as it is" for item in left_alone(_text(settings, slot, ""))
            )
        if more := options.several_instances(request.demand):
            yield more
        if request.mail_type and self._site.mails:
            yield from jobwarnings.about_addresses(settings.get("mail-user"))
        elif request.mail_type:
            yield f"{settings['mail-type'].label}: this host sends no mails"
        if not script.slurm and _text(settings, "mem", "") and "gpu-mem" not in settings:
            yield from jobwarnings.about_memory(settings["mem"])

    def _request(
        self,
        settings: Settings,
        of_words: Mapping[str, Any],
        *,
        chdir: str,
        name: str,
        slurm: bool,
    ) -> Request:
        limit = settings.of(table.TIME)
        amounts = demand(settings, self._site)
        fields = {
            "output": output_of(self._name, is_array="array" in settings),
            "input": "/dev/null",
            "slurm_env": slurm,
            **options.fields(settings),
            **_conditions(settings, self._here),
            **_container(settings, chdir),
            **of_words,
            **self._limits,
        }
        fields |= {"name": name, "chdir": chdir, "submit_dir": self._here.cwd}
        return codec.made(
            Request,
            **fields,
            demand=amounts,
            tasks=options.tasks(settings, amounts.gpus),
            task_cpus=_cpus_of_tasks(settings),
            time_limit=0 if limit is None else limit.value or NO_LIMIT,
            early_signal=_early_signal(settings, slurm=slurm),
            append=settings.value(table.OPEN_MODE, "truncate") == "append",
        )

    def _environment(self, setting: AnySetting | None) -> tuple[dict[str, str], list[str]]:
        text = "ALL" if setting is None else setting.text
        if text not in self._environments:
            try:
                self._environments[text] = exported(text, self._here.environ)
            except BadValue as error:
                raise (error if setting is None else setting.bad(error.why)) from None
        return self._environments[text]

    def _check_outputs(self, settings: Settings, request: Request) -> Iterator[str]:
        """Check the files of input and output; yield warnings."""
        if "output" not in settings and not self._here.is_writable(request.chdir):
            yield (
                f"you cannot create {shown(request.output)} in {shown(request.chdir)}; the job fails"
                " if that is so at its start: name another file with --output"
            )
        if "input" in settings:
            values = self._values(request.name, request.input)
            yield self._here.check_input(settings["input"], values, request.chdir)
        for slot in ("output", "error"):
            setting = settings.get(slot)
            if setting is not None:
                values = self._values(request.name, setting.text)
                makes_directories = settings.value(table.MKDIR, False)
                yield self._here.check_output(setting, values, request.chdir, make=makes_directories)
                if "array" in settings and not request.append and is_one_for_all(setting.text):
                    yield f"{setting.label}: all tasks of the array overwrite one file; %a is their index"

    def _values(self, name: str, pattern: str) -> PatternValues:
        """Return the pattern values that are known before submission; query users only if needed."""
        user, home = self._here.account() if needs_the_user(pattern) else ("", "")
        return PatternValues(
            job_id=0, name=name, user=user, home=home, host=os.uname().nodename.split(".")[0]
        )


def _recorded(plan: Prepared, is_slurm: bool) -> Prepared:
    """Return a submission whose job keeps its warnings, if the command is one of Slurm."""
    if not plan.warnings or not is_slurm:
        return plan
    text = "; ".join(plan.warnings)[:_LONGEST_LINE]
    request = structs.replace(plan.submission.request, warnings=text)
    return structs.replace(plan, submission=structs.replace(plan.submission, request=request))


def submit_line(words: Sequence[str]) -> str:
    """Return the command line of a submission as it is kept with the job."""
    return command_line(words)[:_LONGEST_LINE]


def _spelled(settings: Sequence[AnySetting]) -> list[str]:
    """Return options as words of a command line."""
    return [
        setting.text
        if setting.option.slot == "ignored"
        else f"--{setting.option.name}" + ("" if setting.option.is_flag else f"={setting.text}")
        for setting in settings
    ]


def _of_words(script: _Script, args: Sequence[str], line: str) -> dict[str, Any]:
    """Return the fields of a request that come from the words of the line."""
    return {"args": () if script.program else tuple(args), "submit_line": line}


def _text_of(script: _Script, args: Sequence[str]) -> bytes:
    return _wrapped(command_line([script.program, *args])) if script.program else script.data


def _with_words(plan: Prepared, script: _Script, args: Sequence[str], line: str) -> Prepared:
    """Return the submission of another line with the same script and options."""
    request = structs.replace(plan.submission.request, **_of_words(script, args, line))
    text = _text_of(script, args)
    return structs.replace(plan, submission=structs.replace(plan.submission, request=request, script=text))


def _wrapped(command: str) -> bytes:
    return f"#!/bin/sh\n{command}\n".encode("utf-8", "surrogateescape")


def _cpus_of_tasks(settings: Settings) -> int:
    """Return the CPUs of each task of an exclusive job, as in Slurm one by default; 0: those of the job."""
    if "exclusive" not in settings or "cpus-per-gpu" in settings:
        return 0
    return settings.value(table.CPUS_PER_TASK, 1)


def _text(settings: Settings, slot: str, default: str) -> str:
    return settings[slot].text if slot in settings else default


def output_of(name: str, *, is_array: bool) -> str:
    """Return the default output file of a job that the command `name` submits; of sbatch it is Slurm's."""
    return ("slurm" if name == "sbatch" else "fg") + ("-%A_%a.out" if is_array else "-%j.out")


def _early_signal(settings: Settings, *, slurm: bool) -> EarlySignal | None:
    """Return the signal before the time limit. Without B:, Slurm does not send it to the script's shell."""
    early = settings.value(table.SIGNAL, None)
    if early is None:
        return None
    return structs.replace(early, target="children") if slurm and early.target == "all" else early


# -- conditions and containers ----------------------------------------------------------------------


def _conditions(settings: Settings, here: Surroundings) -> dict[str, Any]:
    """Return the fields of the request that array and times set. Raises BadUsage."""
    fields: dict[str, Any] = {}
    if "array" in settings:
        fields["array"], fields["throttle"] = parse_array(settings["array"].text)
    now = time.time()
    if "begin" in settings:
        begin = here.moment(settings["begin"].text)[0]
        fields["begin"] = math.ceil(begin) if begin > now else 0
    if "deadline" in settings:
        fields["deadline"] = int(here.moment(settings["deadline"].text)[0])
        if fields["deadline"] <= now:
            raise settings["deadline"].bad(" has passed")
    _check_times(settings, fields)
    return fields


def _check_times(settings: Settings, fields: Mapping[str, Any]) -> None:
    """Refuse a deadline that is too early for the time limit or the begin time."""
    if "deadline" not in fields:
        return
    if fields.get("begin", 0) + settings.value(table.TIME, 0) > fields["deadline"]:
        what = " and ".join(f"--{name}" for name in ("begin", "time") if name in settings)
        raise BadUsage(
            f"{settings['deadline'].label}={settings['deadline'].text}: {what} leave no time for the job"
        )


def _container(settings: Settings, chdir: str) -> dict[str, Any]:
    """Return the container; the path of an image is made absolute. Raises BadUsage for mounts without it."""
    image = settings.value(table.CONTAINER, "")
    if image:
        return {"container": os.path.normpath(os.path.join(chdir, image)) if is_path(image) else image}
    for slot in ("container-mounts", "container-workdir"):
        if slot in settings:
            raise BadUsage(f"{settings[slot].label} needs --container")
    return {}


_OF_OPTIONS = {  # sbatch's output variables, each set if its option was given
    **{
        name: f"SLURM_{name.upper().replace('-', '_')}"
        for name in (
            "ntasks-per-node",
            "ntasks-per-gpu",
            "cpus-per-gpu",
            "gpus",
            "gpus-per-node",
        )
    },
    "tasks-per-node": "SLURM_NTASKS_PER_NODE",
    "reservation": "SLURM_JOB_RESERVATION",
    "container": "SLURM_CONTAINER",
}
_IN_MEBIBYTES = {
    "mem": "SLURM_MEM_PER_NODE",
    "mem-per-cpu": "SLURM_MEM_PER_CPU",
    "mem-per-gpu": "SLURM_MEM_PER_GPU",
}


def by_option(settings: Settings, request: Request) -> dict[str, str]:
    """Return the variables that Slurm gives a job for the options that were used.

    Programs decide by their presence: with SLURM_NTASKS, some expect to be started by srun.
    """
    variables = {}
    cpus = request.demand.cpus
    tasks = request.tasks
    if not {"ntasks", "ntasks-per-node", "ntasks-per-gpu", options.IN_ALL}.isdisjoint(settings):
        variables = dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(tasks))
    else:
        tasks = max(1, cpus // settings.value(table.CPUS_PER_TASK, 1))
    variables["SLURM_TASKS_PER_NODE"] = str(tasks)
    variables |= _each_task(settings)
    for setting in settings.values():
        name = setting.option.name
        if name in _OF_OPTIONS:
            variables[_OF_OPTIONS[name]] = setting.text
        elif name in _IN_MEBIBYTES and setting.value.size:
            variables[_IN_MEBIBYTES[name]] = str(setting.value.size >> 20)
        elif name == "open-mode":  # srun reads it for the files of a step
            variables["SLURM_OPEN_MODE"] = setting.text[:1]
    return variables


def _each_task(settings: Settings) -> dict[str, str]:
    """Return the variables of what each task has, which srun reads."""
    each, variables = [], {}
    binding = settings["gpu-bind"].text if "gpu-bind" in settings else ""
    if "cpus-per-task" in settings:
        cpus = str(settings.value(table.CPUS_PER_TASK, 1))
        each, variables = [f"cpu={cpus}"], {"SLURM_CPUS_PER_TASK": cpus}
    gpus = settings.get("gpus")
    if gpus is not None and gpus.option.name == "gpus-per-task" and not gpus.value.size % WHOLE:
        count = gpus.value.size // WHOLE
        each.append(f"gres/gpu={count}")
        binding = binding or f"per_task:{count}"
    if each:
        variables["SLURM_TRES_PER_TASK"] = ",".join(each)
    return variables | ({"SLURM_TRES_BIND": f"gres/gpu:{binding}"} if binding else {})
