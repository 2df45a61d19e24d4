"""Write a call as bytes with cloudpickle, or name the part of it that cannot be written."""

import io
import pickle
import time
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from fgsched.python.errors import NotPicklable

PROTOCOL = 5
_SEARCH = 0.2  # seconds for the search of the culprit
_BUFFER = 64 << 10  # bytes from which a buffer has a file of its own


def _cloudpickle() -> ModuleType:
    """Return cloudpickle. Raises ModuleNotFoundError with the way to install it."""
    try:
        import cloudpickle
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "jobs get functions from cloudpickle, which is not installed: pip install 'fgsched[python]'",
            name="cloudpickle",
        ) from None
    module: ModuleType = cloudpickle
    return module


def dumps(value: Any, label: str, buffers: list[memoryview] | None = None) -> bytes:
    """Return a value as bytes; large buffers are appended to `buffers`, if there is a list.

    Raises:
        NotPicklable: with the path from `label` to the culprit.
    """
    try:
        return _dumped(value, buffers)
    except Exception as error:
        path, why = _culprit(value, label, error)
        raise NotPicklable(f"{path} cannot be sent to a job: {why}") from error


def _dumped(value: Any, buffers: list[memoryview] | None) -> bytes:
    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Put a large buffer aside; True: it belongs into the pickle."""
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if buffers is None or raw.nbytes < _BUFFER:
            return True
        buffers.append(raw)
        return False

    content = io.BytesIO()
    _pickler()(content, protocol=PROTOCOL, buffer_callback=keep).dump(value)
    return content.getvalue()


def _pickler() -> Any:
    """Return a pickler that refuses tensors on a GPU of this process."""
    base: Any = _cloudpickle().Pickler

    class CallPickler(base):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if type(obj).__module__.partition(".")[0] == "torch" and getattr(obj, "is_cuda", False) is True:
                raise pickle.PicklingError("it lives on this process's GPU; send x.cpu()")
            return super().reducer_override(obj)

    return CallPickler


def _culprit(value: Any, label: str, error: Exception) -> tuple[str, str]:
    """Return the path to the smallest part that cannot be pickled, and why it cannot."""
    until = time.monotonic() + _SEARCH
    seen = {id(value)}
    path, part, why = label, value, error
    while time.monotonic() < until:
        for name, inner in _parts(part):
            if id(inner) in seen:
                continue
            seen.add(id(inner))
            failure = _failure(inner)
            if failure is not None:
                path, part, why = f"{path}{', ' if path else ''}{name}", inner, failure
                break
            if time.monotonic() >= until:
                return path, _reason(part, why)
        else:
            break
    return path, _reason(part, why)


def _reason(part: Any, why: Exception) -> str:
    kind = type(part)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} ({why})"


def _failure(value: Any) -> Exception | None:
    try:
        _dumped(value, None)
    except Exception as error:
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value refers to, with the words that lead there."""
    if isinstance(value, CallParts):
        yield from value.parts()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {index}", item) for index, item in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"key {key!r}", item) for key, item in value.items())
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    else:
        if hasattr(value, "__self__"):
            yield "its object", value.__self__
        names = getattr(value, "__dict__", {})
        yield from ((f"attribute .{name}", item) for name, item in dict(names).items())


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=False):
        try:
            yield f"variable {name}", cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__ and not isinstance(function.__globals__[name], ModuleType):
            yield f"global {name}", function.__globals__[name]


class CallParts(tuple[Any, tuple[Any, ...], dict[str, Any]]):
    """The function of a call with its arguments; it is pickled as a tuple."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return tuple, (list(self),)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the function and each argument with the words of a message."""
        function, arguments, keywords = self
        yield from ((f"argument {number}", value) for number, value in enumerate(arguments, start=1))
        yield from ((f"argument {name}=", value) for name, value in keywords.items())
        yield f"the function {getattr(function, '__name__', 'to call')}", function
