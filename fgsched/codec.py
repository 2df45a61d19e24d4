"""Encode and decode the JSON lines of the socket; `protocol.py` declares their types.

Texts such as paths and arguments can contain bytes that are not UTF-8, which JSON cannot represent. `encode`
escapes these bytes; `Decoder.decode` and `decode_answer` restore them (`domain/text.py`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Union

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fgsched import PROTOCOL
from fgsched.domain.errors import BadUsage, Busy, FgschedError, Unreachable
from fgsched.domain.text import escape_bytes, is_half, lazy_regex, quoted, restore_bytes, without_halves
from fgsched.protocol import Answer, Call, Problem, Progress, Retry, name_of

Value = TypeVar("Value")


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line from the controller: an answer, progress or an error."""

    v: int
    ok: msgspec.Raw | UnsetType = UNSET
    progress: Progress | None = None
    error: Problem | None = None
    busy: Retry | None = None


_REPLIES = msgspec.json.Decoder(Reply)  # leaves `ok` undecoded until its type is known


def encode(value: Any) -> bytes:
    """Encode `value` as JSON, with escapes for bytes that are not UTF-8."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(msgspec.to_builtins(value)))


def encode_call(call: Call[Any]) -> bytes:
    """Encode a request as one line."""
    return b'{"v":%d,' % PROTOCOL + encode(call)[1:] + b"\n"


def encode_answer(answer: Any) -> bytes:
    """Encode an answer as one line."""
    return b'{"v":%d,"ok":' % PROTOCOL + encode(answer) + b"}\n"


class OtherProtocol(Unreachable):
    """The controller speaks another version of the protocol than this program."""


def read_reply(line: bytes) -> Reply:
    """Decode a line from the controller.

    Raises: Unreachable for a malformed line; OtherProtocol; Busy; the error in the line.
    """
    reply = _decoded(line, Reply, _REPLIES)
    if reply.v != PROTOCOL:
        raise OtherProtocol(
            f"the controller speaks protocol {reply.v}, this command protocol {PROTOCOL}",
            "Upgrade the older of the two, and restart the controller: fgsched stop",
        )
    if reply.error is not None and reply.busy is not None:
        raise Busy(reply.error.cause, reply.error.remedy, after=reply.busy.after)
    if reply.error is not None:
        raise reply.error.error()
    return reply


def decode_answer(ok: bytes, kind: type[Answer]) -> Answer:
    """Decode the JSON text `ok` as an answer of type `kind`.

    Raises: Unreachable, if the text does not match the type: the controller is of another release.
    """
    return _decoded(ok, kind)


def _decoded(text: bytes, kind: type[Value], decoder: "msgspec.json.Decoder[Value] | None" = None) -> Value:
    """Decode JSON as a value of `kind`. With `decoder`, escapes of bytes remain."""
    try:
        value: Value = _parsed(text, kind) if decoder is None else decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unreachable(
            f"the controller's answer cannot be read: {error}", "Restart the controller: fgsched stop"
        ) from None
    return value


class Decoder:
    """Decoder of requests of given types: `Decoder([Ping, Cancel]).decode(line)`."""

    def __init__(self, kinds: Iterable[type[Call[Any]]]) -> None:
        self.kinds = {name_of(kind): kind for kind in kinds}
        self._union: Any = Union[tuple(self.kinds.values())]  # noqa: UP007  made at run time
        self._decoder: msgspec.json.Decoder[Call[Any]] = msgspec.json.Decoder(self._union)

    def decode(self, line: bytes | bytearray) -> Call[Any]:
        """Decode a request.

        Raises: BadUsage, which names the wrong field; Unreachable, if the line has another protocol version.
        """
        try:
            call: Call[Any] = _parsed(line, self._union, self._decoder)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _refusal(line, error) from None
        if call.v != PROTOCOL:
            raise another_version(call.v)
        return call

    def convert(self, name: str, arguments: Mapping[str, Any]) -> Call[Any]:
        """Make the request `name` from plain values of its fields.

        Raises: BadUsage, which names the wrong field.
        """
        try:
            return msgspec.convert({"op": name, **arguments}, self._union)  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            raise _malformed(error) from None


def made(kind: type[Value], **fields: Any) -> Value:
    """Make a value of `kind` with the checks of a decoded one.

    Raises: BadUsage, which names the wrong field.
    """
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _malformed(error) from None


def another_version(version: object) -> Unreachable:
    """Return the error for a command with another version of the protocol."""
    older = "the command" if isinstance(version, int) and version < PROTOCOL else "the controller"
    return Unreachable(
        f"the command speaks protocol {version}, the controller protocol {PROTOCOL}",
        f"Upgrade {older}, which is the older one.",
    )


def _parsed(text: bytes | bytearray, kind: Any, decoder: Any = None) -> Any:
    """Decode JSON as a value of `kind`, in two steps if it contains escaped bytes or a NUL character."""
    if b"\\u0000" in text:
        return msgspec.convert(_with_bytes(msgspec.json.decode(text)), kind, str_keys=True)
    return decoder.decode(text) if decoder is not None else msgspec.json.decode(text, type=kind)


def _refusal(line: bytes | bytearray, error: Exception) -> FgschedError:
    """Return the error for a bad request: another version, a forged identity or a wrong field."""
    if isinstance(error, FgschedError):
        return error
    import json  # imported here because only refused requests need it

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
    """Return the path of the first bad text in `value`; "" if there is none.

    The path is built only after the text is found: building it for every value would take quadratic time.
    """
    if isinstance(value, dict):
        for key, element in value.items():
            if is_bad(key) or (isinstance(element, str) and is_bad(element)):
                return f".{quoted(key)[1:-1]}"
            if path := _path_to(element, is_bad):
                return f".{quoted(key)[1:-1]}{path}"
    elif isinstance(value, list):
        for place, element in enumerate(value):
            if isinstance(element, str) and is_bad(element):
                return f"[{place}]"
            if path := _path_to(element, is_bad):
                return f"[{place}]{path}"
    return ""


def _has_nul(text: str) -> bool:
    try:
        restore_bytes(text)
    except ValueError:
        return True
    return False


_TOO_LONG = lazy_regex(r"Expected `(str|array)` of length <= ([0-9]+) - at `(\$\..*)`")
_FIELD = lazy_regex(r"\w+(?=[.\[]|$)")
_SHOWN = 300  # characters of a refused text that an answer repeats


def _malformed(error: Exception) -> BadUsage:
    text = str(error)
    if long := _TOO_LONG.fullmatch(text):
        kind, limit, path = long.groups()
        unit = "characters" if kind == "str" else "values"
        return BadUsage(
            f"{_FIELD.findall(path)[-1]} has more than {limit} {unit} (at `{path}`)", "Shorten it."
        )
    if len(text) > 2 * _SHOWN:  # the field is named at the end
        text = f"{text[:_SHOWN]}…{text[-_SHOWN:]}"
    return BadUsage(f"malformed request: {text}")


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return without_halves(escape_bytes(value))
    if isinstance(value, dict):
        return {_escaped(key): _escaped(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(member) for member in value]
    return value


def _with_bytes(value: Any) -> Any:
    """Restore the escaped bytes in all texts of `value`. Raises BadUsage, which names a text with a NUL."""
    try:
        return _restored(value)
    except ValueError:
        path = _path_to(value, _has_nul)
        raise BadUsage(f"malformed request: a text holds a NUL character - at `${path}`") from None


def _restored(value: Any) -> Any:
    """Restore the escaped bytes in all texts of `value`. Raises ValueError for a text with a NUL."""
    if isinstance(value, str):
        return restore_bytes(value)
    if isinstance(value, dict):
        return {restore_bytes(key): _restored(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_restored(member) for member in value]
    return value
