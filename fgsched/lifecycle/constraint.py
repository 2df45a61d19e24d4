"""Read the expression of --constraint: features joined by & and |, with brackets, as sbatch takes it."""

import re

from msgspec import Struct

from fgsched.domain.text import BadValue, lazy_regex
from fgsched.domain.units import SubmitContext

_MOST = 64  # alternatives
_MOST_TERMS = 256  # a controller reads the expression, too, and the work grows with the square
_TOKEN = lazy_regex(r"\s*([&|,()\[\]]|[A-Za-z0-9][A-Za-z0-9 _.-]*(?:\*[0-9]+)?)")
Alternatives = tuple[tuple[str, ...], ...]  # one of these; all features of it


class FeatureNeeds(Struct, frozen=True):
    """What a constraint asks of the GPUs of a job, and the features that the host does not have."""

    gpu: str = ""  # terms with & and |; "": nothing
    unknown: tuple[str, ...] = ()
    is_met: bool = True  # by this host, with the right GPUs


def alternatives(text: str) -> Alternatives:
    """Return the alternatives of an expression; a count such as `*2` is left out. Raises BadValue."""
    if text.count("(") + text.count("[") > _MOST:
        raise BadValue(text, f" has more than {_MOST} brackets")
    if sum(text.count(sign) for sign in "&|,") >= _MOST_TERMS:
        raise BadValue(text, f" has more than {_MOST_TERMS} features")
    tokens = _tokens(text)
    choices = _either(tokens, text)
    if tokens:
        raise BadValue(text, f": {tokens[0]} is not expected there")
    return choices


def needs(text: str, site: SubmitContext, *, has_gpus: bool) -> FeatureNeeds:
    """Return what remains of a constraint on this host. Raises BadValue if it is malformed.

    A job without GPUs can name a feature of any GPU, as with Slurm, where the host has it.
    """
    host = {name.lower() for name in site.features}
    kept_terms, unknown = [], []
    for alternative in alternatives(text):
        of_gpus = [site.aliases.get(term, term) for term in alternative if term.lower() not in host]
        missing = [
            name
            for name in of_gpus
            if not any(_plain(name) in _plain(gpu_feature) for gpu_feature in site.gpu_features)
        ]
        unknown += missing
        if not missing or "constraint" in site.ignores:
            kept_terms.append(tuple(name for name in of_gpus if name not in missing) if has_gpus else ())
    is_open = not kept_terms or () in kept_terms
    gpu = "" if is_open else "|".join("&".join(terms) for terms in kept_terms)
    return FeatureNeeds(gpu, tuple(dict.fromkeys(unknown)), bool(kept_terms))


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadValue(text, f": {text[at:].strip()[:1]!r} is not part of a feature's name")
        tokens.append(match[1].partition("*")[0].strip())
        at = match.end()
    return tokens


def _either(tokens: list[str], text: str) -> Alternatives:
    choices = _all(tokens, text)
    while tokens and tokens[0] == "|":
        tokens.pop(0)
        choices += _all(tokens, text)
    if len(choices) > _MOST:
        raise BadValue(text, f" has more than {_MOST} alternatives")
    return choices


def _all(tokens: list[str], text: str) -> Alternatives:
    choices = _one(tokens, text)
    while tokens and tokens[0] in "&,":
        tokens.pop(0)
        right = _one(tokens, text)
        if len(choices) * len(right) > _MOST:
            raise BadValue(text, f" has more than {_MOST} alternatives")
        choices = tuple((*terms, *more_terms) for terms in choices for more_terms in right)
    return choices


def _one(tokens: list[str], text: str) -> Alternatives:
    if not tokens or tokens[0] in "&|,)]":
        raise BadValue(text, ": a feature is missing")
    token = tokens.pop(0)
    if token not in "([":
        return ((token,),)
    choices = _either(tokens, text)
    if not tokens or tokens.pop(0) not in ")]":
        raise BadValue(text, ": a bracket is not closed")
    return choices
