"""Read files as Azure's own clients do: ``python load.py environment|job|task FILE...``.

Run by the Python of `folder`, which has nothing of ours. Writes a JSON list with an object per file:
``error``, why the library refuses it, or null; ``written``, what stands in the file; ``sent``, what the
client would send for it.
"""

from __future__ import annotations

import enum
import io
import json
import os
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any

Json = dict[str, Any]


def main(kind: str, paths: list[str]) -> None:
    """Write the answers; what the libraries print goes nowhere."""
    with redirect_stdout(io.StringIO()):
        answers = [answer(READERS[kind], path) for path in paths]
    json.dump(answers, sys.stdout)


def answer(read: Callable[[str], tuple[Json, Json]], path: str) -> Json:
    """Return what is said of one file."""
    try:
        written, sent = read(path)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "written": {}, "sent": {}}
    return {"error": None, "written": written, "sent": sent}


def read_environment(path: str) -> tuple[Json, Json]:
    """As ``az ml environment create --file``, up to the upload.

    ``sent`` has besides what the client would send, in ``uploaded``, the files of the build context.
    """
    from azure.ai.ml import load_environment
    from azure.ai.ml._utils._asset_utils import get_ignore_file

    environment = load_environment(path)
    environment.validate()
    # The path stays on this machine: the client replaces it by the address of what it has uploaded.
    folder = _beside(path, environment.build.path)
    ignored = get_ignore_file(folder)
    files = [os.path.join(root, name) for root, _, names in os.walk(folder) for name in names]
    uploaded = [os.path.relpath(file, folder) for file in files if not ignored.is_file_excluded(file)]
    sent: Json = environment._to_rest_object().as_dict()
    return _yaml(path), {**sent, "uploaded": sorted(uploaded)}


def read_job(path: str) -> tuple[Json, Json]:
    """As ``az ml job create --file``."""
    from azure.ai.ml import load_job

    job = load_job(path)
    found = job._validate()
    if not found.passed:
        raise ValueError(json.dumps(found._to_dict()))
    os.listdir(_beside(path, job.code))
    return _yaml(path), job._to_job()._to_rest_object().as_dict()


def _beside(path: str, other: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(path), other))


def _yaml(path: str) -> Json:
    import yaml

    with open(path, encoding="utf-8") as file:
        document: Json = yaml.safe_load(file)
    return document


def read_task(path: str) -> tuple[Json, Json]:
    """As ``az batch task create --json-file``, with the models of the REST API."""
    from azure.batch import models
    from azure.batch._utils.model_base import SdkJSONEncoder, _deserialize

    with open(path, encoding="utf-8") as file:
        document: Json = json.load(file)
    task = _deserialize(models.BatchTaskCreateOptions, document)
    wrong = list(differences(task, ""))
    if wrong:
        raise ValueError("; ".join(wrong))
    return document, json.loads(json.dumps(task, cls=SdkJSONEncoder))


def differences(model: Any, place: str) -> Iterator[str]:
    """Yield what a model of the REST API would carry along and the service refuse: models take anything."""
    from azure.batch import models

    names = {field._rest_name: (name, field) for name, field in model._attr_to_rest_field.items()}
    hints = typing.get_type_hints(type(model), localns={"_models": models})
    for name in sorted(set(model) - set(names)):
        yield f"{place}{name}: unknown field"
    for name, (attribute, field) in sorted(names.items()):
        if name in model:
            yield from _value(getattr(model, attribute), model[name], hints[attribute], f"{place}{name}")
        elif not field._is_optional:
            yield f"{place}{name}: required"


def _value(read: Any, written: Any, hint: Any, place: str) -> Iterator[str]:
    if hasattr(read, "_attr_to_rest_field"):
        yield from differences(read, f"{place}.")
        return
    if isinstance(read, list):
        for number, (item, text) in enumerate(zip(read, written, strict=True)):
            yield from _value(item, text, hint, f"{place}[{number}]")
        return
    kinds = [kind for kind in _kinds(hint) if kind is not type(None)]
    choices = [item.value for kind in kinds if issubclass(kind, enum.Enum) for item in kind]
    if choices and read not in choices:
        yield f"{place}: {read!r} is none of {choices}"
    # The client reads "2" as a number, and sends it on as it was written.
    elif type(read) not in kinds or (type(read) in (str, int, bool) and type(read) is not type(written)):
        yield f"{place}: {written!r} is no {' or '.join(kind.__name__ for kind in kinds)}"


def _kinds(hint: Any) -> Iterator[Any]:
    inner = typing.get_args(hint)
    yield from (kind for item in inner for kind in _kinds(item)) if inner else (hint,)


READERS = {"environment": read_environment, "job": read_job, "task": read_task}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
