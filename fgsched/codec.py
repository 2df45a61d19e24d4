"""Encode and decode the lines of the socket; `protocol.py` has their types.

A text may hold bytes that are not UTF-8, as paths and arguments do. JSON cannot carry them. `encode` escapes
them; `Decoder.decode` and `decode_answer` restore them (`domain/text.py`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Union

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fgsched import PROTOCOL
from fgsched.domain.errors import BadUsage, Busy, FgschedError, Unreachable
from fgsched.domain.text import escape_bytes, is_half, quoted, restore_bytes
from fgsched.protocol import Answer, Call, Problem, Progress, Retry, name_of

Value = TypeVar("Value")


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line from the controller."""

    v: int
    ok: msgspec.Raw | UnsetType = UNSET
    progress: Progress | None = None
    error: Problem | None = None
    busy: Retry | None = None


_REPLIES = msgspec.json.Decoder(Reply)  # `ok` stays as it came until its type is known


def encode(value: Any) -> bytes:
    """Return `value` as JSON; bytes of its texts that are not UTF-8 are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(msgspec.to_builtins(value)))


def encode_call(call: Call[Any]) -> bytes:
    """Return the line that sends `call`."""
    return b'{"v":%d,' % PROTOCOL + encode(call)[1:] + b"\n"


def encode_answer(answer: Any) -> bytes:
    """Return the line that sends `answer`."""
    return b'{"v":%d,"ok":' % PROTOCOL + encode(answer) + b"}\n"


def read_reply(line: bytes) -> Reply:
    """Return one line of the controller's.

    Raises: Unreachable, if it speaks another version; Busy; the error that it answers with.
    """
    reply = _decoded(line, Reply, _REPLIES)
    if reply.v != PROTOCOL:
        raise Unreachable(
            f"the controller speaks protocol {reply.v}, this command protocol {PROTOCOL}",
            "Upgrade the older of the two, and restart the controller: fgsched stop",
        )
    if reply.error is not None and reply.busy is not None:
        raise Busy(reply.error.cause, after=reply.busy.after)
    if reply.error is not None:
        raise reply.error.error()
    return reply


def decode_answer(ok: bytes, kind: type[Answer]) -> Answer:
    """Return the answer in the JSON text `ok`.

    Raises: Unreachable, if it is no answer of `kind`: the controller is of another release.
    """
    return _decoded(ok, kind)


def _decoded(text: bytes, kind: type[Value], decoder: "msgspec.json.Decoder[Value] | None" = None) -> Value:
    """Return JSON as a value of `kind`. With `decoder`, escaped bytes stay escaped."""
    try:
        value: Value = _parsed(text, kind) if decoder is None else decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unreachable(
            f"the controller's answer cannot be read: {error}", "Restart the controller: fgsched stop"
        ) from None
    return value


class Decoder:
    """Decode requests of some kinds: `Decoder([Ping, Cancel]).decode(line)`."""

    def __init__(self, kinds: Iterable[type[Call[Any]]]) -> None:
        self.kinds = {name_of(kind): kind for kind in kinds}
        self._union: Any = Union[tuple(self.kinds.values())]  # noqa: UP007  made at run time
        self._decoder: msgspec.json.Decoder[Call[Any]] = msgspec.json.Decoder(self._union)

    def decode(self, line: bytes | bytearray) -> Call[Any]:
        """Return the request in `line`.

        Raises: BadUsage, which names the field that is wrong; Unreachable for another version.
        """
        try:
            call: Call[Any] = _parsed(line, self._union, self._decoder)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _refusal(line, error) from None
        if call.v != PROTOCOL:
            raise another_version(call.v)
        return call

    def convert(self, name: str, arguments: Mapping[str, Any]) -> Call[Any]:
        """Return the request `name` with plain values as its fields.

        Raises: BadUsage, which names the field that is wrong.
        """
        try:
            return msgspec.convert({"op": name, **arguments}, self._union)  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            raise _malformed(error) from None


def another_version(version: object) -> Unreachable:
    """Return the error for a command that speaks another version of the protocol."""
    older = "the command" if isinstance(version, int) and version < PROTOCOL else "the controller"
    return Unreachable(
        f"the command speaks protocol {version}, the controller protocol {PROTOCOL}",
        f"Upgrade {older}, which is the older one.",
    )


def _parsed(text: bytes | bytearray, kind: Any, decoder: Any = None) -> Any:
    """Return JSON as a value of `kind`. Only texts with escaped bytes, or with a NUL, are decoded twice."""
    if b"\\u0000" in text:
        return msgspec.convert(_with_bytes(msgspec.json.decode(text)), kind, str_keys=True)
    return decoder.decode(text) if decoder is not None else msgspec.json.decode(text, type=kind)


def _refusal(line: bytes | bytearray, error: Exception) -> FgschedError:
    """Return the error for a request that could not be decoded: another version, a forgery, or malformed."""
    if isinstance(error, FgschedError):
        return error
    import json  # only a request that is wrong needs it, and each command would pay for it

    try:
        head = json.loads(line)
        path = f"${_path_to(head, is_half)}" if b"\\ud" in line.lower() else "$"
    except (ValueError, RecursionError):
        return _malformed(error)
    if isinstance(head, dict) and head.get("v", 0) != PROTOCOL:
        return another_version(head.get("v", 0))
    if path != "$":
        return BadUsage(f"malformed request: a text is not Unicode - at `{path}`")
    for claimed in ("uid", "gid", "user"):
        if f"unknown field `{claimed}`" in str(error):
            return BadUsage(f"a request does not name its {claimed}: the kernel tells who asks")
    return _malformed(error)


def _path_to(value: Any, is_bad: Callable[[str], bool]) -> str:
    """Return the path below `value` of the first text that is bad; "" if there is none.

    A path is built only for that text: a path of each value would take time for depth times number.
    """
    if isinstance(value, dict):
        for key, one in value.items():
            if is_bad(key) or (isinstance(one, str) and is_bad(one)):
                return f".{quoted(key)[1:-1]}"
            if found := _path_to(one, is_bad):
                return f".{quoted(key)[1:-1]}{found}"
    elif isinstance(value, list):
        for place, one in enumerate(value):
            if isinstance(one, str) and is_bad(one):
                return f"[{place}]"
            if found := _path_to(one, is_bad):
                return f"[{place}]{found}"
    return ""


def _has_nul(text: str) -> bool:
    try:
        restore_bytes(text)
    except ValueError:
        return True
    return False


_SHOWN = 300  # characters of a refused text that an answer repeats


def _malformed(error: Exception) -> BadUsage:
    text = str(error)
    if len(text) > 2 * _SHOWN:  # the field is named at the end
        text = f"{text[:_SHOWN]}…{text[-_SHOWN:]}"
    return BadUsage(f"malformed request: {text}")


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape_bytes(value)
    if isinstance(value, dict):
        return {_escaped(key): _escaped(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(one) for one in value]
    return value


def _with_bytes(value: Any) -> Any:
    """Return the value with the bytes that its texts escape; BadUsage names a text that holds a NUL."""
    try:
        return _restored(value)
    except ValueError:
        path = _path_to(value, _has_nul)
        raise BadUsage(f"malformed request: a text holds a NUL character - at `${path}`") from None


def _restored(value: Any) -> Any:
    """Return the value with the bytes that its texts escape. Raises ValueError if a text holds a NUL."""
    if isinstance(value, str):
        return restore_bytes(value)
    if isinstance(value, dict):
        return {restore_bytes(key): _restored(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_restored(one) for one in value]
    return value
