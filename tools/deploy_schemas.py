"""Make tests/deploy/schemas from what the projects publish: ``python tools/deploy_schemas.py FOLDER``.

FOLDER has the files that the tables below name, from these releases. What the tests need of them is written
as JSON Schema, small enough to be read in a diff: without descriptions, and with equal parts once, under
``$defs``. An unknown field is an error there, as it is for ``kubectl apply`` and ``az deployment``.

Rules that are no schema are lost: CEL (``x-kubernetes-validations``), webhooks, the API server's own code.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.golden.jobs import render

Json = dict[str, Any]
TARGET = Path(__file__).parent.parent / "tests" / "deploy" / "schemas"
CRDS = {
    "jobset-0.12.0": ["config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"],
    "kubeflow-trainer-2.3.0": [
        "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
        "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml",
    ],
    "mpi-operator-0.8.0": ["manifests/base/kubeflow.org_mpijobs.yaml"],
    "training-operator-1.9.0": ["manifests/base/crds/kubeflow.org_pytorchjobs.yaml"],
}
"""Each schema that comes from CRDs, and their files in the repository of the project."""
CORE = ("batch.v1.Job", "core.v1.Service", "core.v1.ServiceAccount", "rbac.v1.Role", "rbac.v1.RoleBinding")
DEFINITIONS = "_definitions.json"
"""Of v1.37.0-local-strict in the package kubernetes-validate 1.37.0."""
BATCH = "types.json"
"""generated/batch/microsoft.batch/2025-06-01 in Azure/bicep-types-az."""
SKYPILOT = "skypilot.json"
"""``{"task": get_task_schema(), "resources": get_resources_schema()}`` of sky.utils.schemas, on a server."""
COMPOSE = "compose-spec.json"
"""schema/compose-spec.json in compose-spec/compose-spec, 170098b."""
UNUSED = ("description", "default", "title", "$schema", "format")
SHARED_MIN = 120
"""A part that is as long as this in JSON, and there twice, is written once."""


def main(folder: Path) -> None:
    """Write all schemas; each file has one for each kind of object."""
    for name, paths in CRDS.items():
        write(name, dict(read_crd(folder / Path(path).name) for path in paths))
    definitions = json.loads((folder / DEFINITIONS).read_text())["$defs"]
    write("kubernetes-1.37", {kind.rpartition(".")[2]: read_core(definitions, kind) for kind in CORE})
    pools = BicepTypes(json.loads((folder / BATCH).read_text())).resource(
        "Microsoft.Batch/batchAccounts/pools"
    )
    write("azure-batch-2025-06-01", {"pools": pools})
    sky = json.loads((folder / SKYPILOT).read_text())
    write("skypilot-0.14.1", {name: clean(schema) for name, schema in sky.items()})
    compose = (folder / COMPOSE).read_text().replace("#/definitions/", "#/$defs/")
    file: Json = clean(json.loads(compose))
    definitions = file.pop("definitions")
    save("compose-2026-06", {"file": file, "$defs": definitions})


def write(name: str, kinds: Json) -> None:
    """Write schemas with equal parts once."""
    shared, definitions = share(kinds)
    save(name, {**shared, "$defs": definitions})


def save(name: str, whole: Json) -> None:
    """Write a file."""
    (TARGET / f"{name}.json").write_text(render(json.loads(json.dumps(whole, sort_keys=True))) + "\n")


def read_crd(file: Path) -> tuple[str, Json]:
    """Return the kind that a CRD defines, and its schema."""
    crd = yaml.safe_load(file.read_text())
    (stored,) = (version for version in crd["spec"]["versions"] if version["storage"])
    return crd["spec"]["names"]["kind"], close(stored["schema"]["openAPIV3Schema"])


def read_core(definitions: Json, kind: str) -> Json:
    """Return one of Kubernetes' own kinds, with all that it refers to in its place."""

    def walk(node: Any, above: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [walk(item, above) for item in node]
        if not isinstance(node, dict):
            return node
        if isinstance(node.get("$ref"), str):
            name = node["$ref"].rpartition("/")[2]
            return {} if name in above else walk(definitions[name], (*above, name))
        walked = {name: walk(value, above) for name, value in node.items()}
        return (
            {**walked, "additionalProperties": False} if isinstance(node.get("properties"), dict) else walked
        )

    schema: Json = clean(walk({"$ref": f"/io.k8s.api.{kind}"}, ()))
    return schema


def is_kept(keyword: str) -> bool:
    """Whether a keyword of a schema says what is valid."""
    return keyword not in UNUSED and not keyword.startswith("x-kubernetes-")


def clean(node: Any, *, is_names: bool = False) -> Any:
    """Leave out what only people and servers read. Keys of ``properties`` are names."""
    if isinstance(node, list):
        return [clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {name: value for name, value in node.items() if is_names or is_kept(name)}
    return {
        name: clean(value, is_names=name in ("properties", "patternProperties") and not is_names)
        for name, value in kept.items()
    }


def close(node: Any, *, is_names: bool = False) -> Any:
    """Return a structural schema of a CRD as a JSON Schema that knows all fields of an object."""
    if isinstance(node, list):
        return [close(item) for item in node]
    if not isinstance(node, dict):
        return node
    if is_names:
        return {name: close(value) for name, value in node.items()}
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    kept = {name: value for name, value in node.items() if name != "anyOf" and is_kept(name)}
    closed = {name: close(value, is_names=name == "properties") for name, value in kept.items()}
    if "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
        closed["additionalProperties"] = False
    if closed.pop("nullable", False):
        closed["type"] = [closed["type"], "null"]
    return closed


class BicepTypes:
    """Types of Bicep as JSON Schema."""

    def __init__(self, types: list[Json]) -> None:
        self._types = types

    def resource(self, kind: str) -> Json:
        """Return the schema of a resource's body."""
        (found,) = (one for one in self._types if one.get("name", "").startswith(f"{kind}@"))
        schema: Json = self._schema(found["body"], ())
        return schema

    def _schema(self, reference: Json, above: tuple[int, ...]) -> Any:
        number = int(reference["$ref"].rpartition("/")[2])
        one = self._types[number]
        if number in above:
            return {}
        below = (*above, number)
        match one["$type"]:
            case "ObjectType":
                names: Json = one["properties"]
                # Flags: 1 required, 2 read-only.
                return {
                    "type": "object",
                    "properties": {
                        name: self._schema(value["type"], below)
                        for name, value in names.items()
                        if not value["flags"] & 2
                    },
                    "required": sorted(name for name, value in names.items() if value["flags"] & 1),
                    "additionalProperties": (
                        self._schema(one["additionalProperties"], below)
                        if "additionalProperties" in one
                        else False
                    ),
                }
            case "ArrayType":
                return {"type": "array", "items": self._schema(one["itemType"], below)}
            case "UnionType":
                return {"anyOf": [self._schema(each, below) for each in one["elements"]]}
            case "StringLiteralType":
                return {"const": one["value"]}
            case "StringType":
                return {"type": "string"}
            case "IntegerType":
                return {"type": "integer"}
            case "BooleanType":
                return {"type": "boolean"}
            case "AnyType":
                return {}
        raise ValueError(one["$type"])


def share(kinds: Json) -> tuple[Json, Json]:
    """Return schemas whose equal parts are references, and these parts by name."""
    known: dict[str, list[Any]] = {}  # a part's text: its name, the part, how often it is there

    def visit(node: Any, *, is_names: bool = False) -> Any:
        """Return a node with every longer part below replaced by its name."""
        if isinstance(node, list):
            return [visit(item) for item in node]
        if not isinstance(node, dict):
            return node
        named = {
            name: visit(value, is_names=not is_names and name in ("properties", "patternProperties"))
            for name, value in node.items()
        }
        text = json.dumps(named, sort_keys=True)
        if is_names or len(text) < SHARED_MIN:
            return named
        part = known.setdefault(text, [hashlib.sha256(text.encode()).hexdigest()[:8], named, 0])
        part[2] += 1
        return {"$ref": f"#/$defs/{part[0]}"}

    top = visit(kinds, is_names=True)
    parts = {name: (part, count) for name, part, count in known.values()}

    def resolve(node: Any) -> Any:
        """Return a node with the parts that are there once back in their place."""
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        name = str(node.get("$ref", "")).removeprefix("#/$defs/")
        if name in parts and parts[name][1] == 1:
            return resolve(parts[name][0])
        return {name: resolve(value) for name, value in node.items()}

    return resolve(top), {name: resolve(part) for name, (part, count) in parts.items() if count > 1}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
