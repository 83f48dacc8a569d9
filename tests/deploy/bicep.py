"""Read Bicep: the syntax by tree-sitter's grammar, and what is known of a resource's body."""

from __future__ import annotations

from typing import Any

import tree_sitter_bicep
from tree_sitter import Language, Node, Parser


class Unknown(str):
    """The text of an expression, whose value a deployment makes. A schema takes it for a string."""


def read(text: str) -> dict[str, dict[str, Any]]:
    """Return the bodies of all resources that a file makes, by type.

    Raises:
        SyntaxError: The grammar does not know it.
    """
    root = Parser(Language(tree_sitter_bicep.language())).parse(text.encode()).root_node
    if root.has_error:
        raise SyntaxError(str(root))
    given = {}
    for node in root.named_children:
        if node.type == "parameter_declaration":
            name, *_, last = node.named_children
            given[_text(name)] = value(last, {}) if last.type != "type" else Unknown(_text(name))
    made = {}
    for node in root.named_children:
        if node.type == "resource_declaration" and "existing" not in map(_text, node.children):
            _, kind, body = node.named_children
            made[value(kind, given)] = value(body, given)
    return made


def value(node: Node, given: dict[str, Any]) -> Any:
    """Return the value of an expression; of one that is not known here, its text."""
    match node.type:
        case "object":
            pairs = [child.named_children for child in node.named_children if child.type == "object_property"]
            return {_key(name, given): value(one, given) for name, one in pairs}
        case "array":
            return [value(child, given) for child in node.named_children if child.type != "comment"]
        case "string" if all(child.type == "string_content" for child in node.named_children):
            return "".join(map(_text, node.named_children))
        case "number":
            return int(_text(node))
        case "boolean":
            return _text(node) == "true"
        case "identifier":
            return given.get(_text(node), Unknown(_text(node)))
    return Unknown(_text(node))


def _key(node: Node, given: dict[str, Any]) -> str:
    return _text(node) if node.type == "identifier" else str(value(node, given))


def _text(node: Node) -> str:
    assert node.text is not None
    return node.text.decode()
