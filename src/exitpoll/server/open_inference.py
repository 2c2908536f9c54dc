"""The Open Inference Protocol, version 2, with binary tensors: for clients of Triton, KServe, MLServer and Seldon."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response

from exitpoll.decide.metrics import REGRESSION
from exitpoll.server.bodies import Fields, read_object, take_count
from exitpoll.server.dialects import Dialect, Incoming, Render, scores_of, timeout_of
from exitpoll.server.inputs import policy_in_name
from exitpoll.server.model_thread import Result
from exitpoll.server.refusals import RefusalError, invalid
from exitpoll.server.service import Ask, Running, Service

HEADER = "inference-header-content-length"
TEXT = "text"  # the name of the input
LONGEST_LENGTH = 12  # digits
TYPES = {"FP32": "<f4", "INT32": "<i4"}

Tensor = tuple[str, list[int], list[Any]]  # type, shape, values


def parse(service: Service, incoming: Incoming) -> tuple[Ask, Render]:
    """Read a request, with its texts as JSON or as bytes behind it."""
    policy = policy_in_name(service, incoming.path["name"])
    header, binary = _divided(incoming)
    fields = Fields(read_object(header))
    number, inputs = fields.take("id", str), fields.take("inputs", list, [])
    outputs = [_checked(output, "an output") for output in fields.take("outputs", list, []) or []]
    parameters = Fields(fields.take("parameters", dict, {}) or {}, "parameters.")
    policy = parameters.take("policy", str, policy)
    max_depth = take_count(parameters, "max_depth", at_least=0)
    all_binary = bool(parameters.take("binary_data_output", bool, False))
    texts = _texts(inputs or [], binary)
    known = {row["name"] for row in _outputs(service)}
    for output in outputs:
        if not isinstance(output.get("name"), str) or output["name"] not in known:
            raise invalid(f"there is no output {output.get('name')!r:.60}; the outputs are: {', '.join(sorted(known))}")

    def render(running: Running, results: Sequence[Result]) -> Response:
        tensors = _tensors(service, results)
        wanted = {output["name"]: _is_binary(output, all_binary) for output in outputs}
        wanted = wanted or dict.fromkeys(tensors, all_binary)
        about: dict[str, Any] = {"model_name": service.name, "model_version": "1"}
        about |= {} if number is None else {"id": number}
        about["parameters"] = {"policy": running.policy.name, "guarantee": running.guarantee or ""}
        return _written(about, {name: tensors[name] for name in wanted}, wanted)

    return Ask(texts, policy, max_depth, timeout=timeout_of(incoming)), render


# ---- requests -------------------------------------------------------------------------------------------------------


def _divided(incoming: Incoming) -> tuple[bytes, bytes]:
    """Divide a body into JSON and the bytes behind it."""
    length = incoming.headers.get(HEADER)
    if length is None:
        return incoming.body, b""
    if not length.isdecimal() or len(length) > LONGEST_LENGTH or int(length) > len(incoming.body):
        raise invalid(f"Inference-Header-Content-Length {length!r:.20} is not a length within the body", 400)
    return incoming.body[: int(length)], incoming.body[int(length) :]


def _checked(given: object, name: str) -> dict[str, Any]:
    """Check that something is a JSON object."""
    if not isinstance(given, dict) or not isinstance(given.get("parameters", {}), dict):
        raise invalid(f"{name} must be an object, with parameters that are one")
    return given


def _texts(inputs: Sequence[object], binary: bytes) -> list[object]:
    """Return the texts, or pairs of texts, of the only input."""
    if len(inputs) != 1:
        raise invalid(f"there must be one input, {TEXT}, not {len(inputs)}")
    tensor = _checked(inputs[0], "an input")
    if tensor.get("name") != TEXT or tensor.get("datatype") != "BYTES":
        raise invalid(f"the input must be {TEXT}, of BYTES")
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise invalid("the shape of the input must be a list of sizes")
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] not in (1, 2)):
        raise invalid("the shape of the input must be [texts], [texts, 1], or [texts, 2] for pairs")
    size = tensor.get("parameters", {}).get("binary_data_size")
    values = _flat(tensor.get("data")) if size is None else _from_bytes(binary, size)
    if len(values) != int(np.prod(shape, dtype=object)):
        raise invalid(f"the input has {len(values)} elements, which its shape {shape!r:.40} does not")
    return [list(pair) for pair in zip(values[::2], values[1::2], strict=True)] if shape[1:] == [2] else values


def _flat(data: object) -> list[Any]:
    """Return the elements of a tensor that is written as a list, or as lists in a list."""
    if not isinstance(data, list):
        raise invalid("the input has neither data nor binary_data_size")
    return [part for row in data for part in (row if isinstance(row, list) else [row])]


def _from_bytes(binary: bytes, size: object) -> list[Any]:
    """Return texts of which each follows its length, in four bytes."""
    if type(size) is not int or size != len(binary):
        raise invalid(f"binary_data_size {size!r:.20} is not the {len(binary)} bytes behind the JSON", 400)
    texts, start = [], 0
    while start < len(binary):
        if start + 4 > len(binary):
            raise invalid("the binary data end within the length of a text", 400)
        [length] = struct.unpack_from("<I", binary, start)
        start += 4
        if start + length > len(binary):
            raise invalid("the binary data end within a text", 400)
        try:
            texts.append(binary[start : start + length].decode())
        except UnicodeDecodeError as error:
            raise invalid(f"text {len(texts)} is not UTF-8") from error
        start += length
    return texts


# ---- answers --------------------------------------------------------------------------------------------------------


def _outputs(service: Service) -> list[dict[str, Any]]:
    """Describe the outputs."""
    if service.model.runtime.problem_type == REGRESSION:
        rows = [("value", "FP32", [-1])]
    else:
        rows = [("label", "BYTES", [-1]), ("probabilities", "FP32", [-1, len(service.model.label_names)])]
    return [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape in [*rows, ("depth", "INT32", [-1])]]


def _tensors(service: Service, results: Sequence[Result]) -> dict[str, Tensor]:
    """Return the outputs by name."""
    found = [result.prediction for result in results if result.prediction is not None]
    texts = len(found)
    depth: Tensor = ("INT32", [texts], [prediction.depth for prediction in found])
    if service.model.runtime.problem_type == REGRESSION:
        return {"value": ("FP32", [texts], [prediction.label for prediction in found]), "depth": depth}
    names = service.model.label_names
    shares = [share for prediction in found for share in scores_of(prediction, names).values()]
    labels = [_label(prediction.label) for prediction in found]
    tensors: dict[str, Tensor] = {"label": ("BYTES", [texts], labels)}
    return tensors | {"probabilities": ("FP32", [texts, len(names)], shares), "depth": depth}


def _label(label: object) -> str:
    """Return a label; all that apply as a list of JSON."""
    return json.dumps(label) if isinstance(label, tuple) else str(label)


def _is_binary(output: Mapping[str, Any], by_default: bool) -> bool:
    """Return whether an output is wanted as bytes."""
    return bool(output.get("parameters", {}).get("binary_data", by_default))


def _written(about: dict[str, Any], tensors: Mapping[str, Tensor], binary: Mapping[str, bool]) -> Response:
    """Write tensors as JSON, or as bytes behind it."""
    outputs, parts = [], []
    for name, (kind, shape, values) in tensors.items():
        row: dict[str, Any] = {"name": name, "datatype": kind, "shape": shape}
        if binary[name]:
            parts.append(_to_bytes(kind, values))
            row["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            row["data"] = values
        outputs.append(row)
    response = JSONResponse({**about, "outputs": outputs})
    if not parts:
        return response
    header = bytes(response.body)
    headers = {"Inference-Header-Content-Length": str(len(header))}
    return Response(header + b"".join(parts), media_type="application/octet-stream", headers=headers)


def _to_bytes(kind: str, values: Sequence[Any]) -> bytes:
    """Write the values of a tensor as bytes."""
    if kind == "BYTES":
        return b"".join(struct.pack("<I", len(encoded)) + encoded for encoded in (value.encode() for value in values))
    return np.array(values, dtype=TYPES[kind]).tobytes()


def server_metadata() -> dict[str, Any]:
    """Describe the server."""
    return {"name": "exitpoll", "version": "2", "extensions": ["binary_tensor_data"]}


def model_metadata(service: Service, name: str) -> dict[str, Any]:
    """Describe the model."""
    policy_in_name(service, name)
    inputs = [{"name": TEXT, "datatype": "BYTES", "shape": [-1, 2 if service.model.training.get("pairs") else 1]}]
    about = {"name": name, "versions": ["1"], "platform": service.model.runtime.name}
    return {**about, "inputs": inputs, "outputs": _outputs(service)}


def error(refusal: RefusalError) -> object:
    """Return the body of an error."""
    return {"error": str(refusal)}


OPEN_INFERENCE = Dialect(parse, error)
