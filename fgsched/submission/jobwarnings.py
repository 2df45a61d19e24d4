"""Warnings about a submission whose job can run nevertheless, though perhaps not as it was meant."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import shown
from fgsched.domain.units import SubmitContext
from fgsched.lifecycle.jobscript import UnreadLine
from fgsched.submission import foreign, table
from fgsched.submission.options import AnySetting, Setting, Settings
from fgsched.system import nice
from fgsched.system.paths import CONFIG_VARIABLES


def about_unread(lines: Sequence[UnreadLine], name: str, *, has_gpus: bool) -> list[str]:
    """Return warnings about lines that look like requests and are not read.

    Raises BadUsage if such a line asks for GPUs, and nothing else says how many the job gets (`has_gpus`).
    """
    warnings = []
    for line in lines:
        what, remedy = foreign.about(line)
        if not has_gpus and not line.is_comment and foreign.asks_for_gpus(line):
            raise BadUsage(
                f"{name}:{line.number}: {what}; the job would get no GPU", f"{remedy}, or --gpus=0."
            )
        warnings.append(f"{name}: line {line.number}: {what}; {remedy}")
    return warnings


_SELECTION = (  # an assignment of the variable that selects GPUs, in a shell or another language
    r"(?<![$\w{])VARIABLE(?:=|[\'\"]\][ \t]*=(?!=)[ \t]*)[\'\"]?([0-9]+(?:,[0-9]+)*)(?![\w$])"
    r"|(?:setenv|set[ \t]+-\w+)[ \t]+VARIABLE[ \t]+[\'\"]?([0-9]+(?:[, ][0-9]+)*)"
)


def about_own_gpus(script: bytes, name: str, gpus: int, variable: str) -> Iterator[str]:
    """Yield a warning about each line that selects a GPU by a number that no GPU of the job has.

    `variable`: that selects the GPUs of a process.
    """
    if variable.encode() not in script:
        return
    selection = re.compile(_SELECTION.replace("VARIABLE", variable).encode())
    for number, line in enumerate(script.split(b"\n"), 1):
        match = None if line.lstrip().startswith(b"#") else selection.search(line)
        value = (match[1] or match[2]).decode() if match else ""
        if any(int(index) >= gpus for index in re.findall("[0-9]+", value)):
            place = name if name == "--wrap" else f"{name}: line {number}"
            yield (
                f"{place}: {variable}={value} selects a GPU that the job does not have:"
                f" {_numbers(gpus)}; leave it out"
            )


def _numbers(gpus: int) -> str:
    """Return the numbers that a job's GPUs have in the job."""
    if gpus < 2:
        return "its GPU is number 0" if gpus else "it requests none"
    return f"its GPUs are 0 to {gpus - 1}"


def about_labels(settings: Settings, site: SubmitContext) -> Iterator[str]:
    """Yield a warning about an account or a QOS where the site defines none."""
    for slot, what in (("account", "accounts"), ("qos", "QOS")):
        if slot in site.undefined and slot in settings and settings[slot].text:
            setting = settings[slot]
            if f"{slot}={setting.text}" in site.known:
                continue
            yield f"{setting.label}={shown(setting.text)}: this site defines no {what}; it is only a label"


def about_signal(settings: Settings) -> Iterator[str]:
    """Yield a warning about a signal that is sent at the start, as in Slurm."""
    setting, limit = settings.of(table.SIGNAL), settings.value(table.TIME, 0)
    if setting is not None and 0 < limit <= setting.value.before:
        yield (
            f"{setting.label}={setting.text}: the time limit is {limit} s, so the signal is sent"
            " as soon as the job runs"
        )


def about_begin(setting: Setting[str], remark: str) -> list[str]:
    """Warn of a begin time that has passed, or that a change of the clocks skips, as the remark says."""
    return [f"{setting.label}={shown(setting.text)} {remark}"] if remark else []


def about_addresses(setting: Setting[str] | None) -> list[str]:
    """Warn of a text that is no address, which Slurm takes as well."""
    if setting is None or not setting.text or setting.value == setting.text:
        return []
    addresses = setting.value or "your own address"
    return [f"{setting.label}={shown(setting.text)} is not an address; mails go to {addresses}"]


def about_number(setting: AnySetting) -> Iterator[str]:
    """Yield a warning about a number of host memory that was probably meant in GiB."""
    if re.fullmatch(r"[0-9]{1,2}", setting.text) and int(setting.text):
        yield f"{setting.label}={setting.text} is {setting.text} MiB; did you mean {setting.text}G?"


def about_memory(setting: AnySetting) -> list[str]:
    """Warn that --mem-per-gpu is host memory, which is often mistaken for GPU memory."""
    if setting.option.name != "mem-per-gpu":
        return []
    return [f"{setting.label} is memory of the host; for memory of the GPU use --gpu-mem"]


# -- what the running controller does not have ---------------------------------------------------------


def about_controller(
    environ: Mapping[str, str], rlimits: Iterable[tuple[int, int, int]], site: SubmitContext
) -> Iterator[str]:
    """Yield a warning about each property of this process that the running controller does not have."""
    yield from about_variables(environ, site)
    yield from about_limits(rlimits, site)


def about_variables(environ: Mapping[str, str], site: SubmitContext) -> Iterator[str]:
    """Yield a warning about each variable of the command that differs from what the controller uses."""
    if not site.config_file:  # a controller of an earlier version does not tell
        return
    devices = environ.get("FG_DEVICES", "")
    if devices and devices != site.devices:
        used = f"FG_DEVICES={shown(site.devices)}" if site.devices else "no FG_DEVICES"
        yield _without_effect("FG_DEVICES", devices, f"was started with {used}", site)
    name = next((name for name in CONFIG_VARIABLES if environ.get(name)), "")
    if name and os.path.normpath(environ[name]) != site.config_file:
        yield _without_effect(name, environ[name], f"reads {shown(site.config_file)}", site)


def _without_effect(name: str, value: str, why: str, site: SubmitContext) -> str:
    remedy = "; fgsched stop, and the next command starts the controller with it" if site.own else ""
    return f"{name}={shown(value)} has no effect: the controller {why}{remedy}"


def about_limits(rlimits: Iterable[tuple[int, int, int]], site: SubmitContext) -> Iterator[str]:
    """Yield a warning about the limits of this process that the user's controller cannot give to its jobs.

    Only root can raise a hard limit again, so those of the command that started the controller bind all jobs.
    """
    hard = dict(site.limits) if site.own else {}
    lower = [number for number, soft, _ in rlimits if number in hard and not 0 <= soft <= hard[number]]
    if lower:
        listed = ", ".join(f"{nice.name_of(number)} {hard[number]}" for number in lower)
        yield (
            "the controller was started with lower limits than those of this command, and they bind its jobs:"
            f" {listed}; fgsched stop, and the next command starts it with its own"
        )
