"""Commands of RocketMQ's remoting protocol: the frame, and both forms of its header.

Owns the bytes.  A frame is

    length 4 | form of the header 1 | length of the header 3 | header | body

with a header in JSON (form 0) or in RocketMQ's binary form (1).  Everything from outside is bounded: the frame by ``MAX_FRAME_BYTES``,
which RocketMQ has, the header by ``MAX_HEADER_BYTES``.  An answer has the form of its request.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger_wire import strict_json
from dledger_wire.checksum import Buffer
from dledger_wire.errors import InvalidArgumentError

MAX_FRAME_BYTES = 16_777_216
MAX_HEADER_BYTES = 256 << 10  # parsing it takes a millisecond or two; all properties of a message take less, escaped
MAX_CONTENT_BYTES = 256 << 10  # of a body in JSON
MAX_FIELDS = 1_000
VERSION = 479  # of RocketMQ, which these answers are those of: 5.3.3; clients refuse SQL filters without one
JSON, BINARY = 0, 1
RESPONSE, ONEWAY = 1, 2  # flags

_LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS")
_OTHER = _LANGUAGES.index("OTHER")
_HEAD = struct.Struct(">ii")
_BINARY = struct.Struct(">hbhii")  # code, language, version, opaque, flag
_INT, _SHORT = struct.Struct(">i"), struct.Struct(">h")


@dataclass(slots=True)
class Command:
    """A request or an answer.

    Attributes:
        code: Of a request what is wanted, of an answer what became of it.
        fields: RocketMQ's extFields.
        opaque: What an answer is found by: that of its request.
        remark: Text of an error.
        form: Of the header, JSON or BINARY.
    """

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: Buffer = b""
    opaque: int = 0
    flag: int = 0
    remark: str = ""
    language: str = "OTHER"
    version: int = VERSION
    form: int = JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY)

    # Fields of a request

    def text(self, name: str, default: str | None = None) -> str:
        """A field.  InvalidArgumentError when it is missing and has no default."""
        value = self.fields.get(name, default)
        if value is None:
            raise InvalidArgumentError(f"request {self.code}: expected the field {name}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number of at most 64 bits."""
        text = self.text(name, None if default is None else str(default))
        try:
            value = int(text)
        except ValueError:
            value = 1 << 63
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidArgumentError(f"request {self.code}: field {name}: expected a number, got {text[:40]!r}")
        return value

    def is_true(self, name: str) -> bool:
        return self.fields.get(name, "").lower() == "true"

    def content(self) -> dict[str, object]:
        """The body as a JSON object."""
        if len(self.body) > MAX_CONTENT_BYTES:
            raise InvalidArgumentError(f"request {self.code}: a body of {len(self.body)} bytes; expected at most {MAX_CONTENT_BYTES}")
        try:
            found = strict_json.parse(bytes(self.body))
        except ValueError as error:
            raise InvalidArgumentError(f"request {self.code}: the body is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidArgumentError(f"request {self.code}: expected a JSON object as the body")
        return found


def frame_size(head: Buffer) -> int:
    """The size of the frame that begins with these 8 bytes, with its length.  InvalidArgumentError for one that cannot be."""
    length, header = _HEAD.unpack_from(head)
    if not 4 <= length <= MAX_FRAME_BYTES:
        raise InvalidArgumentError(f"a frame of {length} bytes; expected 4 to {MAX_FRAME_BYTES}")
    size = header & 0xFFFFFF
    if size > min(length - 4, MAX_HEADER_BYTES):
        raise InvalidArgumentError(f"a header of {size} bytes in a frame of {length}; expected at most {MAX_HEADER_BYTES}")
    return int(length) + 4


def decode(frame: Buffer) -> Command:
    """The command of a whole frame.  InvalidArgumentError for anything else; the body is a view of the frame."""
    view = memoryview(frame)
    if len(view) < _HEAD.size or frame_size(view) != len(view):
        raise InvalidArgumentError(f"a frame of {len(view)} bytes that says otherwise")
    (_, mark) = _HEAD.unpack_from(view)
    end = _HEAD.size + (mark & 0xFFFFFF)
    form, header = mark >> 24 & 0xFF, view[_HEAD.size : end]
    if form == JSON:
        command = _decode_json(bytes(header))
    elif form == BINARY:
        command = _decode_binary(header)
    else:
        raise InvalidArgumentError(f"a header of form {form}; expected {JSON} (JSON) or {BINARY} (binary)")
    command.form, command.body = form, view[end:]
    return command


def encode(command: Command) -> bytes:
    """The frame of a command, its body copied once."""
    header = _encode_json(command) if command.form == JSON else _encode_binary(command)
    length = 4 + len(header) + len(command.body)
    if length > MAX_FRAME_BYTES or len(header) > 0xFFFFFF:
        raise InvalidArgumentError(f"a frame of {length} bytes; expected at most {MAX_FRAME_BYTES}")
    return b"".join((_HEAD.pack(length, command.form << 24 | len(header)), header, command.body))


def _decode_json(header: bytes) -> Command:
    try:
        found = strict_json.parse(header)
    except ValueError as error:
        raise InvalidArgumentError(f"a header that is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgumentError("a header that is no JSON object")
    fields = found.get("extFields") or {}
    if not isinstance(fields, dict) or len(fields) > MAX_FIELDS:
        raise InvalidArgumentError(f"extFields of a header: expected an object of at most {MAX_FIELDS} fields")
    numbers = [found.get(name, 0) for name in ("code", "opaque", "flag", "version")]
    if not all(isinstance(number, int) and -(1 << 31) <= number < 1 << 31 for number in numbers):
        raise InvalidArgumentError("a header whose code, opaque, flag or version is no number of 32 bits")
    code, opaque, flag, version = numbers
    remark, language = found.get("remark"), found.get("language")
    return Command(
        code,
        {name: _scalar(name, value) for name, value in fields.items() if value is not None},
        opaque=opaque,
        flag=flag,
        version=version,
        remark=remark if isinstance(remark, str) else "",
        language=language if isinstance(language, str) else "OTHER",
    )


def _scalar(name: str, value: object) -> str:
    """As text: clients in C++ send numbers and truth values as such."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise InvalidArgumentError(f"field {name[:40]!r} of a header: expected text, a number, true or false")


def _encode_json(command: Command) -> bytes:
    header: dict[str, object] = {
        "code": command.code,
        "flag": command.flag,
        "language": command.language,
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
        "extFields": command.fields,
    }
    if command.remark:
        header["remark"] = command.remark
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def _decode_binary(header: memoryview) -> Command:
    try:
        code, language, version, opaque, flag = _BINARY.unpack_from(header)
        remark, at = _sized(header, _BINARY.size, _INT)
        packed, at = _sized(header, at, _INT)
        fields: dict[str, str] = {}
        at = 0
        while at < len(packed):
            name, at = _sized(packed, at, _SHORT)
            value, at = _sized(packed, at, _INT)
            if len(value):
                fields[str(name, "utf-8")] = str(value, "utf-8")
            if len(fields) > MAX_FIELDS:
                raise InvalidArgumentError(f"a header of more than {MAX_FIELDS} fields")
        text = str(remark, "utf-8")
    except (struct.error, UnicodeDecodeError):
        raise InvalidArgumentError("a binary header whose lengths do not add up, or whose text is not UTF-8") from None
    known = _LANGUAGES[language] if 0 <= language < len(_LANGUAGES) else "OTHER"
    return Command(code, fields, opaque=opaque, flag=flag, remark=text, language=known, version=version)


def _sized(data: memoryview, at: int, size: struct.Struct) -> tuple[memoryview, int]:
    (length,) = size.unpack_from(data, at)
    at += size.size
    if not 0 <= length <= len(data) - at:
        raise struct.error
    return data[at : at + length], at + length


def _encode_binary(command: Command) -> bytes:
    language = _LANGUAGES.index(command.language) if command.language in _LANGUAGES else _OTHER
    remark = command.remark.encode()
    parts: list[bytes] = []
    for name, value in command.fields.items():
        packed_name, packed = name.encode(), value.encode()
        parts += (_SHORT.pack(len(packed_name)), packed_name, _INT.pack(len(packed)), packed)
    fields = b"".join(parts)
    head = _BINARY.pack(command.code, language, command.version, command.opaque, command.flag)
    return b"".join((head, _INT.pack(len(remark)), remark, _INT.pack(len(fields)), fields))
