"""Just enough of a .proto parser to turn our documentation into message classes."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(Field, f"TYPE_{name.upper()}")
    for name in ("double", "string", "bytes", "bool", "int32", "int64", "uint32")
}
_FIELD = re.compile(r"(?:(repeated|optional) )?(map<string, (\w+)>|\w+) (\w+) = (\d+);")


def load(text: str, package: str) -> dict[str, Any]:
    """The message classes a .proto text describes, under a package name of the caller's choice."""
    text = re.sub(r"//.*", "", text)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    enums = set(re.findall(r"enum (\w+)", text))
    for kind, name, body in re.findall(r"(message|enum) (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}", text):
        if kind == "enum":
            added = file.enum_type.add(name=name)
            for value, number in re.findall(r"(\w+) = (\d+);", body):
                added.value.add(name=value, number=int(number))
        else:
            _add_message(file.message_type.add(name=name), body, package, enums)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[attr-defined,unused-ignore]
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{package}.{message.name}")
        )
        for message in file.message_type
    }


def _add_message(message: Any, body: str, package: str, enums: set[str]) -> None:
    oneof = re.search(r"oneof (\w+) \{([^}]*)\}", body)
    inside = oneof.group(2) if oneof else ""
    if oneof:
        message.oneof_decl.add(name=oneof.group(1))
    fields = [(match, 0 if match[0] in inside else None) for match in _FIELD.finditer(body)]
    for match, index in fields:
        _add_field(message, match, index, package, enums)
    for entry in message.field:  # optional fields are one-member oneofs, declared last
        if entry.proto3_optional:
            entry.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{entry.name}")


def _add_field(
    message: Any, match: re.Match[str], oneof: int | None, package: str, enums: set[str]
) -> None:
    label, kind, value, name, number = match.groups()
    is_repeated = label == "repeated" or value is not None
    added = message.field.add(
        name=name,
        number=int(number),
        label=Field.LABEL_REPEATED if is_repeated else Field.LABEL_OPTIONAL,
        proto3_optional=label == "optional",
    )
    if oneof is not None:
        added.oneof_index = oneof
    if value is not None:
        kind = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=kind)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
        _set_type(entry.field.add(name="value", number=2, label=1), value, package, enums)
        kind = f"{message.name}.{kind}"
    _set_type(added, kind, package, enums)


def _set_type(field: Any, kind: str, package: str, enums: set[str]) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = Field.TYPE_ENUM if kind in enums else Field.TYPE_MESSAGE
    field.type_name = f".{package}.{kind}"
