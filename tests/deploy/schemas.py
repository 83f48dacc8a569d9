"""Published schemas of what manifests say: tests/deploy/schemas has them, and says where they come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.process.starting import ROOT

Json = dict[str, Any]
DEPLOY = Path(ROOT) / "deploy"
SCHEMAS = Path(__file__).parent / "schemas"


def documents(path: Path) -> list[Json]:
    """Return the documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text()))


@lru_cache
def _validator(schema: str, kind: str) -> Draft202012Validator:
    kinds = json.loads((SCHEMAS / f"{schema}.json").read_text())
    definitions = kinds.pop("$defs")
    return Draft202012Validator({"$ref": f"#/kinds/{kind}", "kinds": kinds, "$defs": definitions})


def problems(schema: str, kind: str, document: object) -> list[str]:
    """Return what a schema has against a document: where, and what is wrong there."""
    return sorted(_leaves(_validator(schema, kind).iter_errors(document)))


def _leaves(errors: Any) -> Iterator[str]:
    for error in errors:
        if error.context:
            yield from _leaves(error.context)
        else:
            yield f"{error.json_path}: {error.message}"


def changed(document: Json, path: str, value: object) -> Json:
    """Return a copy of a document with another value at ``spec.rules.0.action``; None removes it."""
    copy: Json = json.loads(json.dumps(document))
    *above, last = (int(word) if word.isdigit() else word for word in path.split("."))
    place: Any = copy
    for word in above:
        place = place[word]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return copy
