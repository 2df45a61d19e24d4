"""The vendors whose GPUs fgsched knows. The only list of them: a vendor is added here and nowhere else."""

from collections.abc import Mapping

from fgsched.gpus.backend import Vendor
from fgsched.gpus.nvidia import Nvidia
from fgsched.gpus.simulated import Simulator

VENDORS: list[Vendor] = [Nvidia(), Simulator()]  # the first one is that of a host without any GPU


def of_host() -> Vendor:
    """Return the vendor of the host's GPUs: the first one whose driver is loaded."""
    real = [vendor for vendor in VENDORS if vendor.facts.is_real]
    return next((vendor for vendor in real if vendor.has_driver()), real[0])


def named(source: str) -> Vendor:
    """Return the vendor with this source; of "none", that of the host."""
    return next((vendor for vendor in VENDORS if vendor.facts.source == source), None) or of_host()


def described(source: str) -> tuple[Vendor, str] | None:
    """Return the vendor and the description in a setting such as "sim:4x80G:H100"; None: it has none."""
    name, colon, description = source.partition(":")
    vendors = [vendor for vendor in VENDORS if colon and vendor.facts.source == name]
    return (vendors[0], description) if vendors else None


def of_job(environ: Mapping[str, str]) -> Vendor:
    """Return the vendor whose GPUs a job has, by the job's environment; elsewhere the first vendor."""
    return next((vendor for vendor in VENDORS if vendor.facts.selection in environ), VENDORS[0])


def variables_of_jobs() -> frozenset[str]:
    """Return the variables of every vendor that a job that is submitted inside a job must not inherit."""
    return frozenset().union(*(vendor.facts.of_jobs for vendor in VENDORS))


def short_model(model: str) -> str:
    """Return the name of a GPU model without the names of its vendor and product line at its beginning."""
    for brand in (word for vendor in VENDORS for word in vendor.facts.brands):
        model = model.removeprefix(f"{brand} ")
    return model


def shortest_model(model: str) -> str:
    """Return the name of a GPU model without the words that most models of its vendor have."""
    common = {word for vendor in VENDORS for word in (*vendor.facts.brands, *vendor.facts.series)}
    return " ".join(word for word in model.split() if word not in common)
