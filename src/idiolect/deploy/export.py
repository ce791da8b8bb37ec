"""A personal model as one file that runs without idiolect: raw images or columns in, probabilities or numbers out."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from idiolect.core import files, tree
from idiolect.core.errors import InputError, RunError
from idiolect.core.import_path import optional
from idiolect.core.method import Method
from idiolect.core.tree import Tree
from idiolect.data.datasets.dataset import Encoding
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.numbers import moments, unscaled
from idiolect.deploy.schema import About, Inputs, TensorPart

# B samples, F features, C classes, D numbers of a target

Format = Literal["onnx", "torch"]
FARTHEST = 1e-4
"""Probabilities may differ by this from those of the bundle, and numbers by so many standard deviations."""
_OPSET = 20
_EXAMPLES = 64
_STORED = "columns/samples"
_INPUT = {"images": "images", "texts": "tokens"}


class Check(NamedTuple):
    """What the file was compared on."""

    samples: int
    difference: float
    """The largest difference of a probability; of numbers, in standard deviations of the target in training."""


class _Module(nn.Module):
    """The model as a module, whose weights are buffers."""

    def __init__(self, model: Personal, method: Method, about: About) -> None:
        super().__init__()
        self.mean_D: Tensor
        self.std_D: Tensor
        self._is_scaled, self._has_labels = bool(about.targets), bool(about.labels)
        if about.targets:
            mean_D, std_D = moments(about.targets)
            self.register_buffer("mean_D", mean_D)
            self.register_buffer("std_D", std_D)
        leaves, self._build = tree.flatten(model)
        for k, leaf in enumerate(leaves):
            self.register_buffer(f"leaf{k}", leaf)
        self._count, self._method = len(leaves), method

    def forward(self, samples: Tree) -> Tensor:
        """Probabilities (B, C) of samples as stored, of labels (B, L), or numbers (B, D) in their units, float64."""
        model = self._build([getattr(self, f"leaf{k}") for k in range(self._count)])
        output_BC = self._method.predict(model.down, model.client, samples)
        if self._has_labels:
            return output_BC[..., 1].exp()
        return output_BC.double() * self.std_D + self.mean_D if self._is_scaled else output_BC.exp()


def export(
    bundle: Bundle,
    out: Path,
    *,
    format: Format = "onnx",
    client: str | int | None = None,
    x_R: Tree | None = None,
) -> Check:
    """Write a model as one file, and compare what it predicts with the bundle before it has its name.

    ``onnx``: the input ``images`` (B, C, H, W), 8 bits; or for a table one input (B,) for each column, float64 with NaN
    or texts with "" where a value is missing; or ``samples`` (B, ...), float32, or int64 where they are ids; or
    ``tokens`` (B, L), int64, the ids of texts; or one input for each of several tensors, by its name. The output
    ``probabilities`` (B, C), of several labels (B, L); of numbers ``predictions`` (B, D), float64, in the units of the
    data. The names of the classes, labels or numbers are in the file's metadata, and of texts what makes ids of them.
    ``torch``: a program of torch.export from samples as stored.

    Args:
        bundle: with a model that is ready.
        out: the file.
        format: of the file.
        client: whose model, where the bundle has several.
        x_R: samples as stored to compare on; None takes synthetic ones.

    Raises:
        InputError: the packages that this needs are not installed, or the bundle has no model.
        RunError: the model cannot be written in this format, its predictions differ, or the disk is full.
    """
    bundle.ready()
    model, method = bundle.model(client), bundle.predicting
    inputs = bundle.about.inputs
    x_R = examples(inputs) if x_R is None else x_R
    output_RC, about = log_probabilities(model, method, x_R), bundle.about
    output_RC = output_RC[..., 1] if about.labels else output_RC
    reference = (unscaled(output_RC, about.targets) if about.targets else output_RC.exp()).numpy()
    module = _Module(model, method, about).eval()
    if format == "torch":
        return _torch(module, out, x_R, reference, about)
    optional("onnxscript", "onnx", "exporting to ONNX")
    onnx, runtime = optional("onnx", "onnx", "exporting to ONNX"), optional("onnxruntime", "onnx", "exporting to ONNX")
    output = "predictions" if about.targets else "probabilities"
    program = _program(module, x_R, [*inputs.tensors] or [_INPUT.get(inputs.kind, "samples")], output)
    if inputs.kind == "table":
        program = _of_columns(onnx, inputs.columns, program, output)
    _describe(onnx, program, bundle)
    content = program.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    check = _check(session.run([output], _feed(inputs, x_R))[0], reference, about)
    files.write(out, content)
    return check


def examples(inputs: Inputs) -> Tree:
    """Synthetic samples as stored, in the range of the real ones."""
    if inputs.tensors:
        return {name: _numbers(one) for name, one in inputs.tensors.items()}
    draw = torch.Generator().manual_seed(0)
    if inputs.kind == "images":
        return torch.randint(0, 256, (_EXAMPLES, *inputs.shape), dtype=torch.uint8, generator=draw)
    x_R, at = _numbers(inputs, draw), 0
    if inputs.kind == "texts":
        count_R = torch.randint(1 + inputs.shape[0], (_EXAMPLES, 1), generator=draw)
        return torch.where(torch.arange(inputs.shape[0]) < count_R, x_R.clamp(min=1), 0)
    for encoding in inputs.columns:
        width = len(encoding.features)
        if encoding.kind == "text":
            places = [k for k, text in enumerate(encoding.texts) if text] + [width - 1] * encoding.gaps
            which = torch.tensor(places)[torch.randint(len(places), (_EXAMPLES,), generator=draw)]
            x_R[:, at : at + width] = torch.nn.functional.one_hot(which, width).float()
        elif encoding.gaps:
            gap_R = torch.rand(_EXAMPLES, generator=draw) < 0.2
            x_R[:, at + width - 1] = gap_R.float()
            if encoding.value:
                x_R[gap_R, at] = torch.nan
        at += width
    return x_R


def _numbers(form: TensorPart, draw: torch.Generator | None = None) -> Tensor:
    """One tensor of synthetic samples."""
    draw = draw or torch.Generator().manual_seed(0)
    if form.ids is not None:
        return torch.randint(form.ids or 2, (_EXAMPLES, *form.shape), generator=draw)
    axes = (-1,) + (1,) * (len(form.shape) - 1)
    mean, std = (torch.tensor(v, dtype=torch.float32).view(axes) for v in (form.mean, form.std))
    return torch.randn(_EXAMPLES, *form.shape, generator=draw) * std + mean


def _program(module: nn.Module, x_R: Tree, names: list[str], output: str) -> Any:
    """The module as an ONNX model of samples as stored."""
    try:
        with _quietly():
            program = torch.onnx.export(
                _with_constants(module, x_R), (_two(x_R), {}), dynamo=True, opset_version=_OPSET, input_names=names,
                output_names=[output], dynamic_shapes=_dynamic(x_R),
                custom_translation_table={torch.ops.aten._cdist_forward.default: _distances}, verbose=False,
            )  # fmt: skip
    except Exception as error:
        what = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise RunError(f"this model cannot be written as ONNX ({what[:200]}): take format=torch") from error
    assert program is not None
    return program.model_proto


def _two(x_R: Tree) -> Tree:
    """The first two samples."""
    return tree.rows(x_R, slice(2))


def _dynamic(x_R: Tree) -> tuple[Any]:
    """That there may be any number of samples, for torch."""
    any_number = {0: torch.export.Dim("samples", min=1)}
    return (dict.fromkeys(x_R, any_number) if isinstance(x_R, dict) else any_number,)


def _with_constants(module: nn.Module, x_R: Tree) -> nn.Module:
    """The module with all that does not depend on the samples computed: ONNX has no Cholesky factors."""
    program: Any = torch.export.export(module, (_two(x_R),), dynamic_shapes=_dynamic(x_R), strict=False).module()
    graph = program.graph
    value: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            value[node] = getattr(program, node.target)
        elif node.op == "call_function" and all(n in value for n in node.all_input_nodes):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), value.__getitem__)
            value[node] = node.target(*args, **kwargs)
    constants = [node for node in value if node.op == "call_function"]
    for node in constants:
        if isinstance(value[node], Tensor):
            program.register_buffer(f"computed_{node.name}", value[node])
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(f"computed_{node.name}"), lambda user: user not in value)
    for node in reversed(constants):  # checks of their types too, which nothing else would remove
        graph.erase_node(node)
    program.recompile()
    return cast(nn.Module, program)


def _distances(a: Any, b: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    """Euclidean distances (B, N) between rows, which the exporter does not know."""
    op: Any = optional("onnxscript", "onnx", "exporting to ONNX").opset20
    apart = op.Sub(op.Unsqueeze(a, op.Constant(value_ints=[1])), op.Unsqueeze(b, op.Constant(value_ints=[0])))
    return op.Sqrt(op.ReduceSumSquare(apart, op.Constant(value_ints=[2]), keepdims=0))


def _of_columns(onnx: Any, columns: tuple[Encoding, ...], program: Any, output: str) -> Any:
    """The program of columns in place of samples as stored; a column may be called as something inside."""
    if any(column.name == output for column in columns):
        raise InputError(f"column {output!r} is called as the file's output: take format=torch")
    try:
        inner = onnx.compose.add_prefix(program, "model/", rename_outputs=False)
        return onnx.compose.merge_models(_columns(onnx, columns), inner, [(_STORED, "model/samples")])
    except Exception as error:
        raise RunError(f"these columns cannot be written as ONNX ({str(error)[:200]}): take format=torch") from error


def _columns(onnx: Any, columns: tuple[Encoding, ...]) -> Any:
    """An ONNX model from columns (B,) to samples as stored (B, F)."""
    make, kind = onnx.helper, onnx.TensorProto
    nodes: list[Any] = []
    features: list[str] = []
    sources: list[Any] = []
    constants: list[Any] = []

    def constant(type: int, values: list[Any]) -> str:
        name = f"columns/constant {len(constants)}"
        constants.append(make.make_tensor(name, type, [len(values)], values))
        return name

    def feature(operator: str, *inputs: str) -> None:
        name = f"columns/feature {len(features)}"
        nodes.append(make.make_node(operator, list(inputs), [f"{name} of {operator}"]))
        nodes.append(make.make_node("Cast", [f"{name} of {operator}"], [f"{name} (B,)"], to=kind.FLOAT))
        nodes.append(make.make_node("Unsqueeze", [f"{name} (B,)", axis], [name]))
        features.append(name)

    axis = constant(kind.INT64, [1])
    for column in columns:
        text = column.kind == "text"
        sources.append(make.make_tensor_value_info(column.name, kind.STRING if text else kind.DOUBLE, ["samples"]))
        if text:
            for value in column.texts:  # one that is not named equals nothing
                unnamed = f"\0{column.name}"
                feature("Equal", column.name, constant(kind.STRING, [(value or unnamed).encode()]))
            if column.gaps:
                feature("Equal", column.name, constant(kind.STRING, [b""]))
        else:
            if column.value:
                feature("Sub", column.name, constant(kind.DOUBLE, [column.shift]))
            if column.gaps:
                feature("IsNaN", column.name)
    nodes.append(make.make_node("Concat", features, [_STORED], axis=1))
    output = make.make_tensor_value_info(_STORED, kind.FLOAT, ["samples", len(features)])
    graph = make.make_graph(nodes, "columns", sources, [output], constants)
    return make.make_model(graph, opset_imports=[make.make_opsetid("", _OPSET)], ir_version=10)


def _feed(inputs: Inputs, x_R: Tree) -> dict[str, np.ndarray[Any, Any]]:
    """Samples as stored, as the file takes them."""
    if inputs.tensors:
        return {name: leaf.numpy() for name, leaf in x_R.items()}
    if inputs.kind != "table":
        return {_INPUT.get(inputs.kind, "samples"): x_R.numpy()}
    values, at = {}, 0
    for column in inputs.columns:
        width = len(column.features)
        x_RF = x_R[:, at : at + width].numpy()
        if column.kind == "text":
            texts = np.array([*column.texts, *([""] if column.gaps else []), "a text that is not known"], dtype=object)
            has_text = x_RF.any(1)
            values[column.name] = texts[np.where(has_text, x_RF.argmax(1), len(texts) - 1)]
        elif column.value:
            values[column.name] = x_RF[:, 0].astype(np.float64) + column.shift
        else:
            values[column.name] = np.where(x_RF[:, 0] > 0, np.nan, 0.0)
        at += width
    return values


def _describe(onnx: Any, program: Any, bundle: Bundle) -> None:
    targets = [target.name for target in bundle.about.targets]
    labels = bundle.about.labels
    names, what = targets or labels or bundle.about.classes, "predictions" if targets else "probabilities"
    program.producer_name = "idiolect"
    program.doc_string = f"{bundle.about.method.title}: {what} of {', '.join(names)}"
    about = {"targets" if targets else "labels" if labels else "classes": "\n".join(names)}
    about |= {"bundle": bundle.digest, "method": bundle.about.method.name}
    if (tokens := bundle.about.inputs.tokens) is not None:
        about["encoder"] = tokens.encoder
    onnx.helper.set_model_props(program, about)


def _torch(module: nn.Module, out: Path, x_R: Tree, reference: np.ndarray[Any, Any], about: About) -> Check:
    with _quietly():
        program = torch.export.export(module, (_two(x_R),), dynamic_shapes=_dynamic(x_R), strict=False)
        with torch.no_grad():
            check = _check(program.module()(x_R).numpy(), reference, about)
        with files.drafted(out) as file:
            torch.export.save(program, file)
    return check


def _check(output_RC: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], about: About) -> Check:
    apart_RC = np.abs(output_RC - reference)
    what, unit = ("predictions", " standard deviations") if about.targets else ("probabilities", "")
    difference = float((apart_RC / moments(about.targets)[1].numpy() if about.targets else apart_RC).max())
    if not difference <= FARTHEST:
        raise RunError(
            f"the exported file's {what} differ by {difference:.2g}{unit}, more than {FARTHEST:g}: it was not written; "
            "take another format"
        )
    return Check(len(reference), difference)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's warnings about packages and shapes."""
    names = ("torch.onnx", "torch.onnx._internal.exporter", "torch.onnx._internal.exporter._registration", "onnxscript",
             "torch.export", "onnx_ir")  # fmt: skip
    before = {name: logging.getLogger(name).level for name in names}
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(None):
            warnings.simplefilter("ignore")
            for name in names:
                logging.getLogger(name).setLevel(logging.CRITICAL)
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
