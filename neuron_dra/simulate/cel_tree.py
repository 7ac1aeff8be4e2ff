"""Adapts a checked CEL expression to what Kubernetes' environment adds to CEL.

The tree is cel.expr.CheckedExpr (https://github.com/google/cel-spec, proto/cel/expr), which the engine writes and
reads. The schema below names the fields that are used here; protobuf keeps the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

from neuron_dra.simulate import cel_functions

_SCHEMA: Final = """
    Empty
    ListType elem_type=1:Type
    MapType key_type=1:Type value_type=2:Type
    AbstractType name=1:string parameter_types=2:*Type
    Type dyn=1:Empty null=2:int32 primitive=3:int32 well_known=5:int32 list_type=6:ListType map_type=7:MapType
    Type message_type=9:string type_param=10:string abstract_type=14:AbstractType
    Constant bool_value=2:bool string_value=6:string
    Ident name=1:string
    Select operand=1:Expr field=2:string test_only=3:bool
    Call target=1:Expr function=2:string args=3:*Expr
    List elements=1:*Expr optional_indices=2:*int32
    Entry id=1:int64 map_key=3:Expr value=4:Expr optional_entry=5:bool
    Struct message_name=1:string entries=2:*Entry
    Comprehension iter_range=2:Expr accu_init=4:Expr loop_condition=5:Expr loop_step=6:Expr result=7:Expr
    Expr id=2:int64 const_expr=3:Constant ident_expr=4:Ident select_expr=5:Select call_expr=6:Call list_expr=7:List
    Expr struct_expr=8:Struct comprehension_expr=9:Comprehension
    TypeOf key=1:int64 value=2:Type
    Reference name=1:string overload_id=3:*string
    ReferenceOf key=1:int64 value=2:Reference
    CheckedExpr reference_map=2:*ReferenceOf type_map=3:*TypeOf expr=4:Expr
"""


def _messages() -> descriptor_pool.DescriptorPool:
    scalars = {"string": 9, "int32": 5, "int64": 3, "bool": 8}  # FieldDescriptorProto.Type; a message is 11
    file = descriptor_pb2.FileDescriptorProto(name="neuron_dra/cel_tree.proto", package="cel")
    messages: dict[str, Any] = {}
    for name, *fields in map(str.split, _SCHEMA.strip().splitlines()):
        if name not in messages:
            messages[name] = file.message_type.add(name=name)
        for field in fields:
            field_name, number, kind = field.replace("=", ":").split(":")
            label = 3 if "*" in kind else 1  # FieldDescriptorProto.Label: repeated, optional
            field_descriptor = messages[name].field.add(name=field_name, number=int(number), label=label)
            field_descriptor.type = scalars.get(kind.strip("*"), 11)
            if field_descriptor.type == 11:
                field_descriptor.type_name = f".cel.{kind.strip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL: Final = _messages()
_CHECKED, _EXPR, _TYPE = (
    message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"cel.{name}"))
    for name in ("CheckedExpr", "Expr", "Type")
)
_CONVERSIONS: Final = frozenset({"bool", "bytes", "double", "duration", "int", "string", "timestamp", "uint"})
_NEW: Final = 1 << 32  # ids of new nodes are the id of the node they replace plus a multiple of this


class InvalidTreeError(Exception):
    """Kubernetes rejects the expression for a reason that the engine does not check."""


def adapt(serialized: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """Return the serialized expression with the meaning it has in Kubernetes. Raises InvalidTreeError.

    - The elements of a literal have one type, literal regular expressions are valid, literals can be converted.
    - `device.attributes` and `device.capacity` have an empty map for every unknown domain.
    - `substring` may end where the text ends, which is an error in the engine.
    - `version == x` is an error if x is not a version, and `quantity == x` if x is not a quantity.

    `fails` returns True if the evaluation of a serialized expression without variables fails.
    """
    envelope = any_pb2.Any.FromString(serialized)
    tree: Any = _CHECKED.FromString(envelope.value)
    types = {entry.key: entry.value for entry in tree.type_map}

    def type_of(node: Any) -> Any:
        return types.get(node.id % _NEW, _TYPE())

    def pack(expr: Any) -> bytes:
        checked = _CHECKED(reference_map=tree.reference_map, type_map=tree.type_map, expr=expr)
        return any_pb2.Any(type_url=envelope.type_url, value=checked.SerializeToString()).SerializeToString()

    nodes = list(_nodes(tree.expr))
    formatted = {arg.id for node in nodes if node.call_expr.function == "format" for arg in node.call_expr.args}
    for node in nodes:
        call = node.call_expr
        if call.function in _CONVERSIONS and call.args[0].HasField("const_expr") and fails(pack(node)):
            raise InvalidTreeError(f"type conversion error in {call.function}()")
        if node.id not in formatted:
            _check_literal(node, type_of)
        _check_pattern(call)
        _default_to_empty(node, type_of)
        if call.function == "substring" and len(call.args) == 2:
            call.function = cel_functions.SUBSTRING
            node.id += _NEW  # the reference map has the engine's function for the old id
        if call.function == "includes":
            _include(node)
        if call.function == "_==_":
            _compare_strictly(node, type_of)
    return pack(tree.expr)


def _nodes(message: Any) -> Iterator[Any]:
    """Yield the expressions below a message, inner ones first, then the message itself if it is one."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for child in value if isinstance(value, Sequence) else (value,):
                yield from _nodes(child)
    if message.DESCRIPTOR.name == "Expr":
        yield message


TypeOf = Callable[[Any], Any]


def _check_literal(node: Any, type_of: TypeOf) -> None:
    optional = node.list_expr.optional_indices
    elements = [(element, index in optional) for index, element in enumerate(node.list_expr.elements)]
    entries = [] if node.struct_expr.message_name else node.struct_expr.entries
    keys = [(entry.map_key, False) for entry in entries]
    values = [(entry.value, entry.optional_entry) for entry in entries]
    for group in (elements, keys, values):
        types = []
        for element, is_optional in group:
            element_type = type_of(element)
            types.append(element_type.abstract_type.parameter_types[0] if is_optional else element_type)
        if any(not _same(types[0], other) for other in types):
            raise InvalidTreeError("the elements of a list or map literal have different types")


def _same(left: Any, right: Any, *, inner: bool = False) -> bool:
    kinds = {_kind(left), _kind(right)}
    if "dyn" in kinds:
        return inner or len(kinds) == 1  # an inner one is the type of the elements of [] and {}, which fits any other
    if kinds == {"list_type"}:
        return _same(left.list_type.elem_type, right.list_type.elem_type, inner=True)
    if kinds == {"map_type"}:
        if not _same(left.map_type.key_type, right.map_type.key_type, inner=True):
            return False
        return _same(left.map_type.value_type, right.map_type.value_type, inner=True)
    return kinds == {"abstract_type"} or bool(left == right)


def _kind(type_: Any) -> str:
    fields = type_.ListFields()
    if not fields or fields[0][0].name == "type_param":
        return "dyn"
    return str(fields[0][0].name)


def _check_pattern(call: Any) -> None:
    if call.function not in ("matches", "find", "findAll"):
        return
    pattern = (*([call.target] if call.HasField("target") else []), *call.args)[1].const_expr
    if pattern.HasField("string_value"):
        try:
            cel_functions.regex(pattern.string_value)
        except ValueError as err:
            raise InvalidTreeError(str(err)) from err


def _default_to_empty(node: Any, type_of: TypeOf) -> None:
    """Turn `domains[key]` into `domains[?key].orValue({})`, and likewise `.name`, `[?key]`, `.?name` and has()."""
    optional = node.call_expr.function in ("_[?_]", "_?._")
    if optional or node.call_expr.function == "_[_]":
        holder, key = node.call_expr.args
    elif node.HasField("select_expr"):
        holder = node.select_expr.operand
        key = _EXPR(id=node.id + _NEW, const_expr={"string_value": node.select_expr.field})
    else:
        return
    # No other name has the type of `device.attributes` or `device.capacity`, unless it is bound to one of them.
    value = type_of(holder).map_type.value_type.map_type.value_type
    if not holder.HasField("ident_expr") or not (value.HasField("dyn") or value.message_type == "kubernetes.Quantity"):
        return
    if node.select_expr.test_only:
        node.CopyFrom(_EXPR(id=node.id, const_expr={"bool_value": True}))
        return
    optional_entry = _call(node.id + 2 * _NEW, "_[?_]", holder, key)
    domain = _call(node.id + 3 * _NEW, "orValue", _EXPR(id=node.id + 4 * _NEW, struct_expr={}), target=optional_entry)
    node.CopyFrom(_call(node.id, "optional.of", domain) if optional else domain)


def _include(node: Any) -> None:
    """Turn `holder.includes(item)` into `type(holder) == list ? item in holder : holder == item`."""
    holder, item = node.call_expr.target, node.call_expr.args[0]
    kind = _call(node.id + 2 * _NEW, "type", holder)
    is_list = _call(node.id + 3 * _NEW, "_==_", kind, _EXPR(id=node.id + 4 * _NEW, ident_expr={"name": "list"}))
    within = _call(node.id + 5 * _NEW, "@in", item, holder)
    equal = _call(node.id + 6 * _NEW, "_==_", holder, item)
    node.CopyFrom(_call(node.id + _NEW, "_?_:_", is_list, within, equal))


def _compare_strictly(node: Any, type_of: TypeOf) -> None:
    """Make `left == right` an error if left is a version or quantity and right is not, as Kubernetes' types do.

    The engine's result is false. `left < right` is an error for every pair of such types:
    `type(left) == T && type(right) != T ? left < right : left == right`.
    """
    left, right = node.call_expr.args
    kinds = _kind(type_of(left)), _kind(type_of(right))
    if kinds[0] not in ("dyn", "message_type") or kinds[1] == "null" or kinds == ("message_type", "message_type"):
        return
    kind = _EXPR(id=node.id + 5 * _NEW, ident_expr={"name": type_of(left).message_type or "kubernetes.Semver"})
    is_left = _call(node.id + 6 * _NEW, "_==_", _call(node.id + 7 * _NEW, "type", left), kind)
    is_right = _call(node.id + 8 * _NEW, "_!=_", _call(node.id + 9 * _NEW, "type", right), kind)
    wrong = _call(node.id + 10 * _NEW, "_&&_", is_left, is_right)
    node.CopyFrom(_call(node.id + 11 * _NEW, "_?_:_", wrong, _call(node.id + 12 * _NEW, "_<_", left, right), node))


def _call(number: int, function: str, *args: Any, **target: Any) -> Any:
    return _EXPR(id=number, call_expr={"function": function, "args": args, **target})
