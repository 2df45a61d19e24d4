"""Parse the options of fgsub from the command line, script headers, the environment and batch lines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fgsched.codec import made
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import MOST_CPUS, WHOLE, Demand
from fgsched.domain.text import BadValue, lazy_regex, quoted, shown
from fgsched.domain.units import SubmitContext, format_mebibytes, format_share, neighbours, split_units
from fgsched.lifecycle.constraint import FeatureNeeds, needs
from fgsched.lifecycle.jobscript import Directives
from fgsched.submission import foreign, table
from fgsched.submission.table import Amount, AnyOption, GpuMemory, HostMemory, JobOption
from fgsched.views.getopt import UnreadableWord, taken
from fgsched.views.options import is_value

Value = TypeVar("Value")
Default = TypeVar("Default")
NOTES = "FGSUB_HINT"  # switches notes off; --hint is an option of Slurm, and not of fgsub
_INSTANCES = lazy_regex(r"(?i)\bmig\b|\dg\.\d+gb|mig-")
_EXPANDABLE = lazy_regex(r"(\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?|^~(?=/|$))")
_AS_WRITTEN = {"chdir", "comment", "error", "export", "input", "job-name", "output", "wrap"}  # blanks count
_WITH_LETTERS = {"output", "error", "input"}
_OF_CPUS = ("cpus-per-task", "cpus-per-gpu", "mincpus", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "gpus")
_INSTEAD = {"HOME": "%h", "~": "%h", "USER": "%u", "FG_JOB_ID": "%j", "SLURM_JOB_ID": "%j"}


class Setting(Struct, Generic[Value], frozen=True):
    """One option with its value and its source."""

    option: JobOption[Value]
    text: str
    value: Value
    source: str = ""  # "": the command line; a variable's name; or the script's name
    line: int = 0  # of the script

    @property
    def label(self) -> str:
        """The name for messages: 'train.sh:3: --gpus', '--gpus' or 'FGSUB_GPUS'."""
        if self.line:
            return f"{self.source}:{self.line}: --{self.option.name}"
        return self.source or f"--{self.option.name}"

    @property
    def origin(self) -> str:
        if self.line:
            return f"{self.source}:{self.line}"
        return self.source or "command line"

    def bad(self, why: str) -> BadValue:
        """Return the error about this value, with the explanation `why`."""
        return BadValue(self.text, why, label=f"{self.label}=")


AnySetting = Setting[Any]


class Settings(dict[str, AnySetting]):
    """The settings of a submission by slot, each the one that counts; the options of the table type them."""

    def of(self, option: JobOption[Value]) -> Setting[Value] | None:
        """Return the setting of an option, or of one that sets the same value; None: it is not set."""
        return self.get(option.slot)

    def value(self, option: JobOption[Value], default: Default) -> Value | Default:
        """Return the value of an option, or a default."""
        setting = self.of(option)
        return default if setting is None else setting.value


class HelpAsked(BadUsage):
    """Raised for --help or --version, which are valid on the command line only."""

    def __init__(self, spelled: str, answer: str) -> None:
        super().__init__(f"{spelled} has no meaning in a script")
        self.answer = answer


_DASHES = "\u2010\u2011\u2013\u2014\u2212"  # hyphens, dashes and the minus sign of PDFs and web pages
_HETEROGENEOUS = ("hetjob", "packjob", ":")  # words between the headers of two components


class OptionReader(Struct, frozen=True):
    """Parses the words of one source, and handles Slurm's unsupported options for that source."""

    source: str = ""
    line: int = 0
    family: str = ""  # "FG" or "SBATCH" in a script
    ignored: dict[str, str] | None = None  # collects Slurm's harmless options and their values
    more: Mapping[str, AnyOption] = {}  # options of this command only

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}: " if self.line else ""

    def setting(self, option: AnyOption, text: str) -> AnySetting:
        """Parse the value of an option.

        Raises:
            BadUsage: the option has no meaning in a script.
            BadValue: the value is invalid.
        """
        if self.line and not option.in_scripts:
            raise BadUsage(f"{self.place}--{option.name} has no meaning in a script")
        text = text if option.name in _AS_WRITTEN else text.strip(" \t")
        try:
            value = option.parse(text)
        except BadValue as error:
            label = self.source if self.source and not self.line else f"{self.place}--{option.name}"
            raise BadValue(text, error.why, label=f"{label}=") from None
        return Setting(option.of(value), text, value, self.source, self.line)

    def unbuilt(self, name: str, value: str | None = "") -> None:
        """Ignore a harmless option of Slurm that is not supported. Raises BadUsage for any other."""
        if self.family != "FG" and name in table.HARMLESS and self.ignored is not None:
            self.ignored[f"--{name}"] = value or ""
            return
        raise BadUsage(f"{self.place}--{name} is not supported yet")

    def read(self, words: Sequence[str]) -> tuple[list[AnySetting], list[str]]:
        """Parse the options at the start of `words`; return them and the remaining words. Raises BadUsage."""
        settings, operands = list[AnySetting](), list[str]()
        known_options = table.KNOWN_IN_FOREGROUND if self.more else table.KNOWN
        try:
            for name, text in taken(known_options, words, operands, permute=False, is_value=is_value):
                option = table.BY_NAME.get(name) or self.more.get(name)
                if option is None:  # one of Slurm that has no effect
                    self.unbuilt(name, text)
                else:
                    settings.append(self.setting(option, option.bare if text is None else text))
        except UnreadableWord as error:
            raise self._refused(error) from None
        if operands and not _is_ended(words, operands):
            self._refuse_dash(operands[0])
        return settings, operands

    def _refused(self, error: UnreadableWord) -> BadUsage:
        """Return the error about a word that is no option, or lacks a value."""
        name, letter = error.name, error.letter
        if error.trouble == "needs a value":
            return BadUsage(f"{self.place}--{name} needs a value")
        if error.trouble == "takes no value":
            return BadUsage(f"{self.place}--{name} takes no value")
        spelled = letter or name
        if spelled in table.ASKS_FOR_HELP and (letter or len(name) > 1):
            return HelpAsked(f"{self.place}{'-' if letter else '--'}{spelled}", table.ASKS_FOR_HELP[spelled])
        if error.trouble != "unknown letter":
            return BadUsage(f"{self.place}{_unknown(name)}")
        long = error.word[1:].partition("=")[0]
        meant = f"; did you mean -{shown(error.word)}?" if long in table.BY_NAME else ""
        return BadUsage(f"{self.place}unknown option -{shown(letter)}{meant}")

    def _refuse_dash(self, word: str) -> None:
        """Refuse an option that begins with the dash of a text. Raises BadUsage."""
        if word[:1] in _DASHES and word.lstrip(_DASHES + "-")[:1].isalpha():
            plain = "--" + word.lstrip(_DASHES + "-")
            raise BadUsage(
                f"{self.place}{shown(word)} begins with the dash of a text, not with -", f"Type {plain}"
            )


def _is_ended(words: Sequence[str], operands: Sequence[str]) -> bool:
    """Tell whether `--` ends the options."""
    at = len(words) - len(operands)
    return at > 0 and words[at - 1] == "--"


def _unknown(name: str) -> str:
    """Return the message about an unknown option, with the option that was probably meant."""
    from difflib import get_close_matches  # slow to import, and only needed for this message

    spelled = f"unknown option {shown(f'--{name}')}"
    if name in table.MEANT:
        return f"{spelled}; use {table.MEANT[name]}"
    near = get_close_matches(name, [*table.BY_NAME, *table.HARMLESS], 1)
    if near and (near[0][0] in name[:2] or name == near[0][1:]):  # a slip seldom changes how a word begins
        return f"{spelled}; did you mean --{near[0]}?"
    fitting = [
        f"--{option_name}" for option_name in sorted(table.BY_NAME) if name and option_name.startswith(name)
    ]
    return f"{spelled}: it is the beginning of {', '.join(fitting)}" if fitting else spelled


def read(
    words: Sequence[str], more: Mapping[str, AnyOption] | None = None
) -> tuple[list[AnySetting], list[str]]:
    """Parse a command line; return the options, and the script or command with its arguments.

    Options of Slurm that have no effect here are returned as one setting, `ignored`. `more` are options of
    the command beside those of the table.
    """
    ignored: dict[str, str] = {}
    settings, operands = OptionReader(ignored=ignored, more=more or {}).read(words)
    if operands[:1] == [":"]:
        raise heterogeneous("':' between the options of several components")
    if ignored:
        settings.append(Setting(table.IGNORED, " ".join(ignored), ignored))
    return settings, operands


def heterogeneous(place: str) -> BadUsage:
    """Return the error about a job of several components, for which `place` asks."""
    return BadUsage(
        f"{place}: heterogeneous jobs are not supported yet",
        "Request the sum of the components in one job, or submit a job for each of them:\n"
        "fgsub --dependency=after:last starts a job after the one before has started.",
    )


def from_script(script_lines: Directives, name: str) -> tuple[list[AnySetting], list[str]]:
    """Parse the header lines of a script; return the options and warnings. Raises BadUsage."""
    settings: list[AnySetting] = []
    ignored: dict[str, str] = {}
    warnings: list[str] = []
    for line in script_lines.lines:
        reader = OptionReader(name, line.number, script_lines.family, ignored)
        words = line.words
        if script_lines.family.startswith("#"):
            translation = foreign.read(script_lines.family, words, f"{name}:{line.number}")
            words = translation.words
            warnings += [
                f"{name}: line {line.number}: {script_lines.family} {part} has no meaning here and is ignored"
                for part in translation.unknown
            ]
        line_settings, operands = reader.read(words)
        if operands and operands[0] in _HETEROGENEOUS:
            raise heterogeneous(f"{reader.place}{operands[0]}")
        if operands or "--" in line.words:
            word = shown(operands[0] if operands else "--")
            raise BadUsage(f"{reader.place}{word} is not an option (invalid directive)")
        settings.extend(line_settings)
    warnings += [
        f"{name}: line {setting.line}: {remark}" for setting in settings if (remark := unexpanded(setting))
    ]
    if ignored:
        warnings.append(f"{name}: ignored, without effect here: {', '.join(ignored)}")
    return settings, warnings


def unexpanded(setting: AnySetting) -> str:
    """Return a warning about a variable or tilde in a header, which is not expanded, or ""."""
    if not setting.line or setting.option.name in ("comment", "export"):
        return ""
    match = _EXPANDABLE.search(setting.text)
    if not match:
        return ""
    letter = _INSTEAD.get(match[2] or match[1], "") if setting.option.slot in _WITH_LETTERS else ""
    return f"{shown(match[1])} is not expanded in headers" + (f"; use {letter}" if letter else "")


def from_environment(environ: Mapping[str, str]) -> tuple[list[AnySetting], list[str]]:
    """Parse the FGSUB_ variables; return the options and warnings about unknown ones. Raises BadUsage."""
    settings: list[AnySetting] = []
    warnings: list[str] = []
    for variable in sorted(name for name in environ if name.startswith("FGSUB_") and name != NOTES):
        option = table.BY_VARIABLE.get(variable)
        if option is None:
            name = variable.removeprefix("FGSUB_").lower().replace("_", "-")
            if name in table.UNBUILT:
                raise BadUsage(f"{variable}: --{name} is not supported yet")
            warnings.append(f"{shown(variable)} is not an option of fgsub")
        elif not option.is_flag or _is_set(environ[variable]):
            settings.append(OptionReader(variable).setting(option, environ[variable]))
    return settings, warnings


def from_slurm_environment(environ: Mapping[str, str]) -> tuple[list[AnySetting], list[str]]:
    """Parse the input variables of sbatch; return the options, and a warning about ignored ones.

    An empty variable has no effect, except for an option that needs no value. Raises BadUsage.
    """
    settings: list[AnySetting] = []
    ignored: list[str] = []
    for variable in sorted(table.BY_SLURM_VARIABLE.keys() & environ.keys()):
        name, text = table.BY_SLURM_VARIABLE[variable], environ[variable]
        option = table.BY_NAME.get(name)
        if option is not None and option.is_flag:
            settings += [OptionReader(variable).setting(option, "")] if _is_set(text) else []
        elif option is not None and (text or option.bare):
            settings.append(OptionReader(variable).setting(option, text or option.bare))
        elif option is None and name in table.HARMLESS:
            ignored.append(variable)
        elif option is None and text:
            raise BadUsage(f"{variable}: --{name} is not supported yet")
    environment = [f"ignored, without effect here: {', '.join(ignored)}"] if ignored else []
    return settings, environment


def _is_set(text: str) -> bool:
    """Tell whether a flag in the environment is set: empty, yes, or a number other than zero."""
    digits = text.removeprefix("-")
    return text in ("", "yes") or (digits.isascii() and digits.isdigit() and int(digits[:20]) != 0)


IN_ALL = "gpus-in-all"  # the amount of --gpus or --gres beside --gpus-per-task


def _of_tasks(first: AnySetting, second: AnySetting) -> tuple[AnySetting, AnySetting] | None:
    """Return the amounts of GPUs of each task and of all together, if two settings name these; else None."""
    if second.option.name == "gpus-per-task":
        first, second = second, first
    names = (first.option.name, second.option.name)
    is_pair = names[0] == "gpus-per-task" and names[1] in ("gpus", "gres", "gpus-per-node")
    return (first, second) if is_pair else None


def latest(settings: Iterable[AnySetting], *, strict: bool = False) -> Settings:
    """Return the last setting of each slot. Raises BadUsage if `strict` and two values differ."""
    chosen = Settings()
    for setting in settings:
        before = chosen.get(setting.option.slot)
        if before is not None and (pair := _of_tasks(before, setting)):
            chosen["gpus"], chosen[IN_ALL] = pair
            continue
        differs = before is not None and before.value != setting.value
        if (
            before is not None
            and differs
            and (before.option is not setting.option or (setting.option.slot == "container" and not strict))
        ):
            raise _exclude(before, setting)
        if before is not None and strict and setting.option.slot == "mail-type":
            setting = _both(before, setting)
        elif before is not None and differs and strict:
            first, second = f"line {before.line}: {before.text}", f"line {setting.line}: {setting.text}"
            raise BadUsage(f"{setting.label} given twice ({first}, {second})")
        chosen[setting.option.slot] = setting
    return chosen


def with_tres(settings: Settings) -> Settings:
    """Return settings with those of --tres-per-task as the options of its parts. Raises BadUsage."""
    tres = settings.get("tres-per-task")
    if tres is None:
        return settings
    parts = []
    for name, text in tres.value:
        option = table.BY_NAME[name]
        parts.append(Setting(option, text, option.parse(text), tres.source, tres.line))
    others = [setting for setting in settings.values() if setting is not tres]
    return latest([*others, *parts])


def _exclude(first: AnySetting, second: AnySetting) -> BadUsage:
    """Return the error about two settings of which a job can have one."""
    if first.option is second.option:
        return BadUsage(f"{second.label} given twice ({first.text}, {second.text}); give one")
    return BadUsage(f"{second.label} and --{first.option.name} exclude each other; give one")


def _both(first: AnySetting, second: AnySetting) -> AnySetting:
    """Return the mail types of two headers together, as Slurm does."""
    text = f"{first.text},{second.text}"
    return replace(second, text=text, value=second.option.parse(text))


def files_as_values(settings: Iterable[AnySetting]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of options whose value may have been meant as the script."""
    for setting in settings:
        if isinstance(setting.value, dict):
            yield from setting.value.items()
        elif not setting.source and not setting.option.is_flag:
            yield f"--{setting.option.name}", setting.text


def given(settings: Iterable[AnySetting], name: str) -> str | None:
    """Return the text of one option of the command line, such as 'batch', or None."""
    texts = [setting.text for setting in settings if setting.option.name == name]
    return texts[-1] if texts else None


# -- the demand of a job ---------------------------------------------------------------------------


def fields(settings: Settings) -> dict[str, Any]:
    """Return the fields of the request that take the value of an option.

    Some are computed further: the caller has a path, a time or an array in their place.
    """
    return {setting.option.field: setting.value for setting in settings.values() if setting.option.field}


def demand(settings: Settings, site: SubmitContext) -> Demand:
    """Return the demand of a job. Raises BadUsage, with the nearest valid shares, for an invalid share."""
    gpus, share, gpu_type = _gpus(settings, site)
    gpus, memory = _gpu_memory(settings, gpus, site)
    if every := _gpus_of_host(settings, site):
        gpus, share, gpu_type, memory = every, WHOLE, "", GpuMemory()
    gpu_type = _gpu_type(settings.of(table.GPU_TYPE), site.aliases.get(gpu_type, gpu_type), gpus, site)
    gpu_type = _also(gpu_type, _constraint(settings, gpus, site).gpu)
    requested_cpus = max(_cpus(settings, gpus), settings.value(table.MINCPUS, 1))
    cpus = max(_possible(settings, requested_cpus), site.cpus if "exclusive" in settings else 1)
    return made(
        Demand,
        gpus=gpus,
        share=share,
        memory=memory.size,
        memory_part=memory.part,
        gpu_type=gpu_type,
        cpus=cpus,
        host_memory=_host_memory(settings.of(table.MEM), cpus, gpus, site),
        resources=_resources(settings, site),
    )


def _gpus_of_host(settings: Settings, site: SubmitContext) -> int:
    """Return the number of GPUs of a job that has the whole host; 0: the job has what it requests.

    As in Slurm, the amount in --gpus or --gres does not matter beside --exclusive.
    """
    if "exclusive" not in settings or settings["exclusive"].text != "yes":
        return 0
    partition = settings["partition"].text if "partition" in settings else site.partition
    return site.partition_gpus.get(partition.partition(",")[0], 0)


def _resources(settings: Settings, site: SubmitContext) -> tuple[tuple[str, int], ...]:
    """Return the site resources of --gres and --licenses. Raises BadUsage for an unknown one."""
    resources: dict[str, int] = {}
    for setting, kind, named in _with_resources(settings):
        for name, count in named:
            if name in site.resources:
                resources[name] = count
            elif kind not in site.ignores:
                raise setting.bad(_no_resource(name, kind, site))
    return tuple(sorted(resources.items()))


def _with_resources(settings: Settings) -> Iterator[tuple[AnySetting, str, tuple[tuple[str, int], ...]]]:
    """Yield each setting that can name resources of the site, what it calls them, and the resources."""
    for setting in filter(None, (settings.of(table.GPUS), settings.of(table.OTHER_GRES))):
        yield setting, "gres", setting.value.resources
    if (licenses := settings.of(table.LICENSES)) is not None:
        yield licenses, "license", licenses.value


def _no_resource(name: str, kind: str, site: SubmitContext) -> str:
    """Return the reason why a job with an unknown resource is refused, and what to do."""
    shard = ("shard",) if site.shards_per_gpu else ()
    names = (*(("gpu", *shard) if kind == "gres" else ()), *site.resources)
    meant = _nearest(name, names)
    switch = f'unknown_{kind} = "warn" in fgsched.toml lets such jobs run without it'
    hint = (
        f"did you mean {meant}?" if meant else f"there are {', '.join(names) or 'none'}. Delete it; {switch}"
    )
    what = "generic resource" if kind == "gres" else "license"
    return f": invalid {what} specification, there is no {quoted(name)} here; {hint}"


def ignored_resources(settings: Settings, site: SubmitContext) -> Iterator[str]:
    """Yield a warning about the resources of each option that the site lets jobs ignore."""
    for setting, kind, named in _with_resources(settings):
        unknown = ", ".join(name for name, _ in named if name not in site.resources)
        if unknown and kind not in site.unsaid:
            yield f"{setting.label}: ignored, no such resource here: {unknown}"


def _nearest(word: str, names: tuple[str, ...]) -> str:
    from difflib import get_close_matches  # slow to import, and only needed for this message

    return next(iter(get_close_matches(word, names, 1, 0.5)), "")


def tasks(settings: Settings, gpus: int) -> int:
    """Return the number of tasks. Raises BadUsage if the options contradict each other."""
    each_node = settings.value(table.NTASKS_PER_NODE, 0)
    each_gpu = settings.value(table.NTASKS_PER_GPU, 0)
    if each_gpu and not gpus:
        raise settings["ntasks-per-gpu"].bad(": tasks per GPU need --gpus or --gpu-mem")
    number = settings.value(table.NTASKS, 0) or each_node or each_gpu * gpus or _tasks_with_gpus(settings)
    if each_node and number > each_node:
        nodes = -(-number // each_node)
        setting = settings["ntasks-per-node"]
        raise setting.bad(f": {number} tasks would need {nodes} nodes; fgsched schedules one host")
    return number


def _tasks_with_gpus(settings: Settings) -> int:
    """Return the number of tasks for which the GPUs suffice, if those of all and of each are requested."""
    each, total = settings.of(table.GPUS), settings.get(IN_ALL)
    if each is None or total is None or not each.value.size:
        return 1
    return max(1, int(total.value.size // each.value.size))


def _cpus(settings: Settings, gpus: int) -> int:
    """Return the CPUs of all tasks together."""
    setting = settings.of(table.CPUS_PER_GPU)
    if setting is None:
        return settings.value(table.CPUS_PER_TASK, 1) * tasks(settings, gpus)
    if "cpus-per-task" in settings:
        raise BadUsage(f"{setting.label} and --cpus-per-task exclude each other; give one")
    if not gpus:
        raise setting.bad(": CPUs per GPU need --gpus or --gpu-mem")
    return max(gpus * setting.value, tasks(settings, gpus))


def _possible(settings: Settings, cpus: int) -> int:
    """Return the number of CPUs. Raises BadUsage, with the options that ask for it, if they are too many."""
    if cpus > MOST_CPUS:
        named = [settings[slot] for slot in _OF_CPUS if slot in settings]
        requested = " ".join(f"{setting.label}={setting.text}" for setting in named)
        raise BadUsage(f"{requested}: {cpus} CPUs; limit {MOST_CPUS}")
    return cpus


def _gpus(settings: Settings, site: SubmitContext) -> tuple[int, int, str]:
    """Return (number of GPUs, share of each in ten-thousandths, type) of --gpus, --fgpu or --gres."""
    setting = settings.of(table.GPUS)
    if setting is None:
        return 0, 0, ""
    amount = setting.value
    try:
        times = tasks(settings, 0) if setting.option.name == "gpus-per-task" else 1
        gpus, share = split_units(_in_gpus(setting, amount, site) * times)
    except ValueError as error:
        raise setting.bad(str(error)) from None
    total = settings.get(IN_ALL)
    if total is not None and _in_gpus(total, total.value, site) != gpus * share:
        number = format_share(gpus * share)
        raise total.bad(f": the tasks have {number} GPUs with {setting.label}={setting.text}")
    if share % WHOLE and share % site.share_step:
        low, high = (format_share(neighbour) for neighbour in neighbours(share, site.share_step))
        step = format_share(site.share_step)
        raise setting.bad(f" is not a multiple of this site's step of {step}; use {low} or {high} of a GPU")
    return gpus, share, amount.gpu_type or (total.value.gpu_type if total else "")


def _in_gpus(setting: Setting[Amount], amount: Amount, site: SubmitContext) -> int:
    if amount.unit == "gpu":
        return amount.size
    parts = site.fgpu_per_gpu if amount.unit == "fgpu" else site.shards_per_gpu
    what = "fGPU" if amount.unit == "fgpu" else "shard"
    if not parts:
        raise setting.bad(f": this site defines no {what}; use --gpus=FRACTION, such as --gpus=0.5")
    units = amount.size // parts  # rounded down: as many fit on a GPU as the site says
    if amount.size and not units:
        raise setting.bad(": smallest share is 0.0001 of a GPU")
    if units > WHOLE and amount.size % (parts * WHOLE):
        low = amount.size // (parts * WHOLE) * parts
        raise setting.bad(f": above one GPU only whole GPUs; use {low} or {low + parts}")
    return units


def _gpu_memory(settings: Settings, gpus: int, site: SubmitContext) -> tuple[int, GpuMemory]:
    setting = settings.of(table.GPU_MEM)
    if setting is None:
        return gpus, GpuMemory()
    amount_of_gpus = settings.of(table.GPUS)
    if amount_of_gpus is not None and not gpus:
        raise setting.bad(
            f": GPU memory needs a GPU, and {amount_of_gpus.label}={amount_of_gpus.text} asks for none"
        )
    if 0 < setting.value.size < site.context_memory and setting.text[-1:].isdecimal():
        from fgsched.gpus import vendors  # fgsub seldom needs them

        size, context = format_mebibytes(site.context_memory), vendors.of_host().facts.context
        raise setting.bad(f" is in MiB, less than the {size} of a {context} here; request more")
    return gpus or 1, setting.value


def _gpu_type(setting: Setting[str] | None, in_amount: str, gpus: int, site: SubmitContext) -> str:
    if setting is None:
        return in_amount
    wanted = site.aliases.get(setting.value, setting.value)
    if in_amount and in_amount.lower() != wanted.lower():
        raise setting.bad(f": the amount of GPUs names another type, {in_amount}")
    if not gpus:
        raise setting.bad(": a GPU type needs --gpus or --gpu-mem beside it")
    return wanted


def _also(gpu_type: str, constraint: str) -> str:
    """Return the terms for both: a type, and a constraint."""
    if not gpu_type or not constraint:
        return gpu_type or constraint
    return "|".join(f"{gpu_type}&{terms}" for terms in constraint.split("|"))


def _constraint(settings: Settings, gpus: int, site: SubmitContext) -> FeatureNeeds:
    """Return what --constraint needs. Raises BadUsage, with the features that there are."""
    if (setting := settings.get("constraint")) is None:
        return FeatureNeeds()
    feature_needs = needs(setting.text, site, has_gpus=gpus > 0)
    if not feature_needs.is_met:
        listed = ", ".join(dict.fromkeys((*site.features, *site.aliases, *site.gpu_features))) or "none"
        raise setting.bad(f": no such feature here: {', '.join(feature_needs.unknown)}; there are {listed}")
    return feature_needs


def ignored_features(settings: Settings, site: SubmitContext) -> list[str]:
    """Return a warning about features of --constraint that the site lets jobs ignore."""
    unknown = ", ".join(_constraint(settings, 1, site).unknown)
    is_told = unknown and "constraint" in site.ignores and "constraint" not in site.unsaid
    return [f"--constraint: ignored, no such feature here: {unknown}"] if is_told else []


def several_instances(demand: Demand) -> str:
    """Return a warning about a request for several MIG instances; "" for any other one."""
    if demand.gpus < 2 or not _INSTANCES.search(demand.gpu_type):
        return ""
    from fgsched.gpus import vendors

    vendor = vendors.of_host().facts
    return (
        f"the job gets {demand.gpus} MIG instances, and {vendor.runtime} shows a process only the first of"
        f" {vendor.selection}: give each process another one"
    )


def _host_memory(setting: Setting[HostMemory] | None, cpus: int, gpus: int, site: SubmitContext) -> int:
    if setting is None:
        return 0
    memory = setting.value
    if memory.per == "gpu" and not gpus:
        raise setting.bad(": memory per GPU needs --gpus or --gpu-mem (it is host memory; see --gpu-mem)")
    size = memory.size * {"job": 1, "cpu": cpus, "gpu": gpus}[memory.per]
    if size >= 1 << 63:
        raise setting.bad(" is larger than 2^63 bytes in all")
    return size or site.host_memory
