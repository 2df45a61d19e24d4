"""Parse the options of fgsub from the command line, script headers, the environment and batch lines.

click only provides help and completion. The options are parsed here, because errors in a header must name the
line, and a batch has up to ten thousand lines.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from msgspec import Struct

from fgsched.cli import table
from fgsched.cli.table import Option
from fgsched.domain.errors import BadUsage
from fgsched.domain.text import BadValue, lazy_regex, shown
from fgsched.jobs.jobscript import Directives

_EXPANDABLE = lazy_regex(r"(\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?|^~(?=/|$))")
_WITH_LETTERS = {"output", "error", "input"}
_INSTEAD = {"HOME": "%h", "~": "%h", "USER": "%u", "FG_JOB_ID": "%j", "SLURM_JOB_ID": "%j"}


class Setting(Struct, frozen=True):
    """One option with its value and its source."""

    option: Option
    text: str
    value: object
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


class HelpAsked(BadUsage):
    """Raised for --help or --version, which are valid on the command line only."""

    def __init__(self, spelled: str, answer: str) -> None:
        super().__init__(f"{spelled} has no meaning in a script")
        self.answer = answer


class Reader(Struct, frozen=True):
    """Parses the words of one source, and handles Slurm's unsupported options for that source."""

    source: str = ""
    line: int = 0
    family: str = ""  # "FG" or "SBATCH" in a script
    ignored: list[str] | None = None  # collects Slurm's harmless options in #SBATCH lines

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}: " if self.line else ""

    def setting(self, option: Option, text: str) -> Setting:
        """Parse the value of an option.

        Raises:
            BadUsage: the option has no meaning in a script.
            BadValue: the value is invalid.
        """
        if self.line and not option.in_scripts:
            raise BadUsage(f"{self.place}--{option.name} has no meaning in a script")
        label = self.source if self.source and not self.line else f"{self.place}--{option.name}"
        try:
            value = option.parse(text)
        except BadValue as error:
            raise BadValue(text, error.why, label=f"{label}=") from None
        return Setting(option.of(value), text, value, self.source, self.line)

    def unbuilt(self, name: str) -> None:
        """Ignore a harmless #SBATCH option that is not supported. Raises BadUsage for any other."""
        if self.family == "SBATCH" and name in table.HARMLESS and self.ignored is not None:
            self.ignored.append(f"--{name}")
            return
        raise BadUsage(f"{self.place}--{name} is not supported yet")

    def read(self, words: Sequence[str]) -> tuple[list[Setting], list[str]]:
        """Parse the options at the start of `words`; return them and the remaining words. Raises BadUsage."""
        settings: list[Setting] = []
        at = 0
        while at < len(words):
            word = words[at]
            if word == "--":
                return settings, list(words[at + 1 :])
            if len(word) < 2 or word[0] != "-":
                break
            following = words[at + 1] if at + 1 < len(words) else None
            take = self._long if word[1] == "-" else self._short
            at += 2 if take(word, following, settings) else 1
        return settings, list(words[at:])

    def _long(self, word: str, following: str | None, settings: list[Setting]) -> bool:
        """Parse '--name=value' or '--name value'; return whether the following word was the value."""
        name, equals, text = word[2:].partition("=")
        option = table.BY_NAME.get(name)
        if option is None:
            return self._other(name, bool(equals))
        if option.is_flag:
            if equals:
                raise BadUsage(f"{self.place}--{name} takes no value")
            settings.append(self.setting(option, ""))
            return False
        if not equals and option.bare:
            settings.append(self.setting(option, option.bare))
            return False
        if not equals:
            text = self._following(name, following)
        settings.append(self.setting(option, text))
        return not equals

    def _short(self, word: str, following: str | None, settings: list[Setting]) -> bool:
        """Parse '-G 0.5', '-G0.5' or flags -HQ; tell whether the following word was the value."""
        for at, letter in enumerate(word[1:], start=2):
            option = table.BY_SHORT.get(letter)
            rest = word[at:]
            if option is None:
                name = table.UNBUILT_SHORT.get(letter)
                if letter in table.ASKS_FOR_HELP:
                    raise HelpAsked(f"{self.place}-{letter}", table.ASKS_FOR_HELP[letter])
                if name is None:
                    raise BadUsage(f"{self.place}unknown option -{shown(letter)}")
                self.unbuilt(name)
                kind = table.UNBUILT[name]
                if kind:
                    return kind == "=" and not rest
            elif option.is_flag:
                settings.append(self.setting(option, ""))
            else:
                text = rest or self._following(option.name, following)
                settings.append(self.setting(option, text))
                return not rest
        return False

    def _following(self, name: str, following: str | None) -> str:
        if following is None or following.startswith("--"):
            raise BadUsage(f"{self.place}--{name} needs a value")
        return following

    def _other(self, name: str, has_value: bool) -> bool:
        if name in table.ASKS_FOR_HELP and len(name) > 1:
            raise HelpAsked(f"{self.place}--{name}", table.ASKS_FOR_HELP[name])
        if name in table.UNBUILT:
            self.unbuilt(name)
            return table.UNBUILT[name] == "=" and not has_value
        raise BadUsage(f"{self.place}{_unknown(name)}")


def _unknown(name: str) -> str:
    from difflib import get_close_matches  # slow to import, and only needed for this message

    near = get_close_matches(name, [*table.BY_NAME, *table.UNBUILT], 1)
    hint = f"; did you mean --{near[0]}?" if near else ""
    return f"unknown option {shown(f'--{name}')}{hint}"


def read(words: Sequence[str]) -> tuple[list[Setting], list[str]]:
    """Parse a command line; return the options, and the script or command with its arguments."""
    return Reader().read(words)


def from_script(found: Directives, name: str) -> tuple[list[Setting], list[str]]:
    """Parse the header lines of a script; return the options and warnings. Raises BadUsage."""
    settings: list[Setting] = []
    ignored: list[str] = []
    for line in found.lines:
        reader = Reader(name, line.number, found.family, ignored)
        given, rest = reader.read(line.words)
        if rest or "--" in line.words:
            word = shown(rest[0] if rest else "--")
            raise BadUsage(f"{reader.place}{word} is not an option (invalid directive)")
        settings.extend(given)
    warnings = [f"{name}: line {each.line}: {said}" for each in settings if (said := unexpanded(each))]
    if ignored:
        warnings.append(f"{name}: ignored, without effect here: {', '.join(dict.fromkeys(ignored))}")
    return settings, warnings


def unexpanded(setting: Setting) -> str:
    """Return a warning about a variable or tilde in a header, which is not expanded, or ""."""
    if not setting.line or setting.option.name in ("comment", "export"):
        return ""
    found = _EXPANDABLE.search(setting.text)
    if not found:
        return ""
    letter = _INSTEAD.get(found[2] or found[1], "") if setting.option.slot in _WITH_LETTERS else ""
    return f"{shown(found[1])} is not expanded in headers" + (f"; use {letter}" if letter else "")


def from_environment(environ: Mapping[str, str]) -> tuple[list[Setting], list[str]]:
    """Parse the FGSUB_ variables; return the options and warnings about unknown ones. Raises BadUsage."""
    settings: list[Setting] = []
    warnings: list[str] = []
    for variable in sorted(name for name in environ if name.startswith("FGSUB_")):
        option = table.BY_VARIABLE.get(variable)
        if option is None:
            name = variable.removeprefix("FGSUB_").lower().replace("_", "-")
            if name in table.UNBUILT:
                raise BadUsage(f"{variable}: --{name} is not supported yet")
            warnings.append(f"{shown(variable)} is not an option of fgsub")
        elif not option.is_flag or _is_set(environ[variable]):
            settings.append(Reader(variable).setting(option, environ[variable]))
    return settings, warnings


def _is_set(text: str) -> bool:
    """Tell whether a flag in the environment is set: empty, yes, or a number other than zero."""
    digits = text.removeprefix("-")
    return text in ("", "yes") or (digits.isascii() and digits.isdigit() and int(digits[:20]) != 0)


def latest(settings: Iterable[Setting], *, strict: bool = False) -> dict[str, Setting]:
    """Return the last setting of each slot. Raises BadUsage if `strict` and two values differ."""
    chosen: dict[str, Setting] = {}
    for setting in settings:
        before = chosen.get(setting.option.slot)
        differs = before is not None and before.value != setting.value
        if before is not None and differs and before.option is not setting.option:
            raise BadUsage(f"{setting.label} and --{before.option.name} exclude each other; give one")
        if before is not None and differs and strict:
            first, second = f"line {before.line}: {before.text}", f"line {setting.line}: {setting.text}"
            raise BadUsage(f"{setting.label} given twice ({first}, {second})")
        chosen[setting.option.slot] = setting
    return chosen


def given(settings: Iterable[Setting], name: str) -> str | None:
    """Return the text of one option of the command line, such as 'batch', or None."""
    texts = [setting.text for setting in settings if setting.option.name == name]
    return texts[-1] if texts else None


def click_options() -> list[click.Parameter]:
    """Return the table of options as click options, in its order."""
    return [
        click.Option(
            [f"--{option.name}", *([f"-{option.short}"] if option.short else [])],
            is_flag=option.is_flag,
            metavar=option.metavar or None,
            help=option.help,
            hidden=option.hidden,
        )
        for option in table.OPTIONS
    ]


class OptionsCommand(click.Command):
    """A click command with the table's options; its callback gets `settings` and `words`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*click_options(), *self.params]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # completion
            return super().parse_args(ctx, args)
        try:
            settings, words = read(args)
        except HelpAsked as asked:
            return super().parse_args(ctx, [f"--{asked.answer}"])
        ctx.params = {"settings": settings, "words": words}
        return []
