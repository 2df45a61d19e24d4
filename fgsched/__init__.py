"""Schedule batch jobs on fractions of the GPUs of one host, with Slurm's commands.

A module imports only from its own layer and the layers below (tests/test_layers.py):

    domain      jobs, GPUs, policy, units and errors
    core        jobs: one job; scheduling: all jobs and all GPUs. Neither imports the other
    edges       config, system, launch, store, gpus, server, client
    controller  the daemon; simulate: its decisions in virtual time
    cli         one module a command; python: functions as jobs

`import fgsched` imports nothing more; the names of the Python interface are imported when they are used.

See docs/design/architecture.md.
"""

__version__ = "0.1.0"
PROTOCOL = 2  # of the socket between the commands and the controller

_EXPORTS = {
    "job": "submit job jobs forget Why",
    "errors": """CallFailed GpuOutOfMemory HostFailed HostOutOfMemory JobCancelled JobDied JobError
        NotPicklable RemoteTraceback ResultGone ResultNotPicklable SubmissionWarning TimeLimitReached""",
    "arrays": "JobArray as_completed map",
    "submission": "options",
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names.split()}
_RENAMED = {"Job": ("python.job", "JobHandle"), "FgschedError": ("domain.errors", "FgschedError")}


def __getattr__(name: str) -> object:
    """Import a name of the Python interface when it is used (PEP 562). Raises AttributeError."""
    if name not in _MODULES and name not in _RENAMED and name != "calls":
        raise AttributeError(f"module 'fgsched' has no attribute {name!r}")
    from importlib import import_module

    if name == "calls":
        return import_module("fgsched.python.calls")
    module, original = _RENAMED.get(name, (f"python.{_MODULES.get(name, '')}", name))
    value: object = getattr(import_module(f"fgsched.{module}"), original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names of the Python interface, too."""
    return sorted({*globals(), *_MODULES, *_RENAMED, "calls"})
