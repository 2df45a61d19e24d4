"""The report for the finance office: GPU-hours by account and model with weights, and balances."""

from collections import defaultdict
from collections.abc import Mapping

from fgsched.reports import frame, numbers
from fgsched.reports.facts import Facts
from fgsched.reports.model import (
    Cell,
    Column,
    Given,
    Headline,
    Number,
    Report,
    Section,
    Table,
    Words,
)
from fgsched.reports.registry import Wish
from fgsched.reports.wording import dash, model_name


def weight_of(model: str, weights: Mapping[str, float]) -> float:
    """Return the weight of the longest name in `weights` that is part of the model's name; 1 without one."""
    fits = [name for name in weights if name.lower() in model.lower()]
    return weights[max(fits, key=lambda name: (len(name), name))] if fits else 1.0


def charge(facts: Facts, wish: Wish) -> Report:
    """Return the report on the charge of accounts and users."""
    models = {gpu.uuid: gpu.model for gpu in facts.gpus}
    seconds_by_owner: dict[tuple[str, str, str], float] = defaultdict(float)
    for use in facts.uses:
        key = (use.owner.account, use.owner.user, models.get(use.uuid, ""))
        seconds_by_owner[key] += use.charged
    weighted = sum(value * weight_of(key[2], wish.weights) for key, value in seconds_by_owner.items())
    body = frame.Body(
        kind="charge",
        title="GPU-hours charged",
        lede=_lede(facts, weighted, wish),
        figures=(frame.headline_charged(facts), _weighted(weighted, facts, wish)),
        sections=(
            Section("accounts", "Accounts", "", (_accounts(seconds_by_owner, wish),)),
            Section("charges", "Accounts, users and models", "", (_lines(seconds_by_owner, wish),)),
            Section("weights", "Weights", "", (_weights(sorted(set(models.values())), wish),)),
        ),
        terms=("charged", "weight"),
        main="charges",
        quiet=not seconds_by_owner,
    )
    return frame.framed(facts, body, wish.now)


def _lede(facts: Facts, weighted: float, wish: Wish) -> tuple[str, ...]:
    if not facts.charged:
        return (f"Nothing was charged in this {facts.period.noun}.",)
    text = f"{numbers.brief_hours(facts.charged)} GPU-hours were charged"
    if not wish.weights:
        return (f"{text}. No model has a weight.",)
    return (f"{text}, {numbers.brief_hours(weighted)} with the weights of the models.",)


def _weighted(weighted: float, facts: Facts, wish: Wish) -> Headline:
    hours = numbers.hours(weighted)
    note = "with the weights of the models" if wish.weights else "no model has a weight"
    return Headline("weighted", "Weighted", Number(hours.value, hours.unit, f"{hours.text} h"), note)


def _accounts(seconds_by_owner: Mapping[tuple[str, str, str], float], wish: Wish) -> Table:
    hours: dict[str, float] = defaultdict(float)
    weighted: dict[str, float] = defaultdict(float)
    for (account, _, model), value in seconds_by_owner.items():
        hours[account] += value
        weighted[account] += value * weight_of(model, wish.weights)
    columns = (
        Column("account", "Account"),
        Column("charged", "GPU-hours", right=True, unit="GPU-hours"),
        Column("weighted", "Weighted", right=True, unit="GPU-hours"),
        Column("share", "Share", right=True, unit="%"),
        Column("quota", "Quota", right=True, unit="GPU-hours"),
        Column("balance", "Balance", right=True, unit="GPU-hours"),
    )
    names = sorted(weighted, key=lambda name: (-weighted[name], name))
    shares = numbers.shares([weighted[name] for name in names])
    rows = tuple(
        (
            Given(name or "(none)"),
            numbers.hours(hours[name]),
            numbers.hours(weighted[name]),
            part,
            *_balance(hours[name], wish.quotas.get(name)),
        )
        for name, part in zip(names, shares, strict=True)
    )
    return Table("accounts", columns, rows, total=_total(hours, weighted), empty="Nothing was charged.")


def _balance(charged: float, quota: float | None) -> tuple[Cell, Cell]:
    if quota is None:
        return dash(), dash()
    return numbers.hours(quota), numbers.hours(quota - charged)


def _total(hours: Mapping[str, float], weighted: Mapping[str, float]) -> tuple[Cell, ...]:
    if not hours:
        return ()
    sums = (numbers.hours(sum(hours.values())), numbers.hours(sum(weighted.values())))
    return Words("total"), *sums, Number(100.0, "%", "100.0 %"), dash(), dash()


def _lines(seconds_by_owner: Mapping[tuple[str, str, str], float], wish: Wish) -> Table:
    columns = (
        Column("account", "Account"),
        Column("user", "User"),
        Column("model", "Model"),
        Column("charged", "GPU-hours", right=True, unit="GPU-hours"),
        Column("weight", "Weight", right=True),
        Column("weighted", "Weighted", right=True, unit="GPU-hours"),
    )
    rows: list[tuple[Cell, ...]] = []
    for account, user, model in sorted(seconds_by_owner):
        value, weight = seconds_by_owner[account, user, model], weight_of(model, wish.weights)
        rows.append(
            (
                Given(account or "(none)"),
                Given(user),
                Words(model_name(model)),
                numbers.hours(value),
                Number(weight, "", f"{weight:g}"),
                numbers.hours(value * weight),
            )
        )
    return Table("charges", columns, tuple(rows), empty="Nothing was charged.")


def _weights(models: list[str], wish: Wish) -> Table:
    columns = (Column("model", "Model"), Column("weight", "Weight", right=True))
    rows = tuple(
        (Words(model_name(model)), Number(weight, "", f"{weight:g}"))
        for model in models
        for weight in (weight_of(model, wish.weights),)
    )
    return Table("weights", columns, rows, empty="No GPU was seen.")
