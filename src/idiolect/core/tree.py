"""Trees of tensors: a tensor, or a tuple, NamedTuple or dict of trees, as torch's pytree has them.

Only this module uses that private part of torch. It goes through the usual trees itself: torch's functions, which know
many more types, take a fifth of a small network's training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = Any
"""Any tree, where its structure does not matter."""
T = TypeVar("T")
"""One type of tree, such as a NamedTuple of weights: the result has the type of the argument."""


def map(function: Callable[..., Any], tree: T, *others: Tree) -> T:
    """Apply a function to each leaf, with the matching leaves of the other trees.

    The function should return a tensor, or the declared type of the result is wrong.
    """
    parts, make = _split(tree)
    if make is None:
        return function(tree, *others)  # type: ignore[no-any-return]
    if not others:
        return make([map(function, part) for part in parts])  # type: ignore[no-any-return]
    rows = zip(parts, *(_like(tree, other) for other in others), strict=True)
    return make([map(function, *row) for row in rows])  # type: ignore[no-any-return]


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree, in a fixed order."""
    tensors: list[Tensor] = []
    _collect(tree, tensors)
    return tensors


def flatten(tree: T) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], T]]:
    """The tensors of a tree, and the function that makes such a tree from a list like them."""
    flat: list[Tensor] = []
    build = _collect(tree, flat)
    count = len(flat)

    def whole(new: Sequence[Tensor]) -> T:
        if len(new) != count:
            raise ValueError(f"the tree has {count} leaves, and there are {len(new)}")
        return build(iter(new))  # type: ignore[no-any-return]

    return flat, whole


def _split(tree: Tree) -> tuple[Sequence[Tree], Callable[[list[Tree]], Tree] | None]:
    """The parts of a tree, and the function that makes such a tree from new parts; None for a leaf."""
    kind = type(tree)
    if kind is Tensor:
        return (), None
    if kind is dict:
        return list(tree.values()), lambda new: dict(zip(tree, new, strict=True))
    if kind is tuple:
        return tree, tuple
    if hasattr(kind, "_make"):
        return tree, kind._make
    if (node := pytree.SUPPORTED_NODES.get(kind)) is None:
        return (), None
    parts, context = node.flatten_fn(tree)
    return parts, lambda new: node.unflatten_fn(new, context)


def _like(tree: Tree, other: Tree) -> Sequence[Tree]:
    """The parts of another tree, in the order of the first one's.

    Raises:
        ValueError: it has another structure.
    """
    if type(other) is not type(tree) or len(other) != len(tree) or (type(tree) is dict and other.keys() != tree.keys()):
        raise ValueError(f"the trees differ in structure: {type(tree).__name__} and {type(other).__name__}")
    return [other[name] for name in tree] if type(tree) is dict else _split(other)[0]


def _collect(tree: Tree, flat: list[Tensor]) -> Callable[[Iterator[Tensor]], Tree]:
    """Add the leaves of a tree to a list; returns the function that makes such a tree from the next leaves."""
    parts, make = _split(tree)
    if make is None:
        flat.append(tree)
        return next
    builds = [_collect(part, flat) for part in parts]
    return lambda new: make([build(new) for build in builds])


def named(tree: Tree) -> dict[str, Tensor]:
    """The tensors of a tree by their path, for example ``body/0.weight``."""
    pairs, _ = pytree.tree_flatten_with_path(tree)
    return {"/".join(_step(s) for s in path): leaf for path, leaf in pairs}


def _step(key: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def stack(trees: Sequence[T]) -> T:
    """One tree with a leading axis from a list of trees of one structure."""
    return map(lambda *parts: torch.stack(parts), *trees)


def gather(trees: list[T]) -> T:
    """``stack`` that empties the list as it goes, so that only one leaf at a time is in memory twice.

    Raises:
        ValueError: the trees differ in structure.
        RuntimeError: their leaves differ in shape.
    """
    for other in trees[1:]:
        map(_one_of_each, trees[0], other)
    parts = [leaves(t) for t in trees]
    _, build = flatten(trees[0])
    trees.clear()
    out = []
    for leaf in range(len(parts[0])):
        out.append(torch.stack([p[leaf] for p in parts]))
        for p in parts:
            p[leaf] = p[leaf].new_empty(0)
    return build(out)


def _one_of_each(leaf: Tensor, other: Tree) -> Tensor:
    if _split(other)[1] is not None:
        raise ValueError(f"the trees differ in structure: {type(leaf).__name__} and {type(other).__name__}")
    return leaf


def rows(tree: T, index: Any) -> T:
    """The given rows of each leaf's leading axis."""
    return map(lambda a: a[index], tree)


def split(tree: T, rows: int) -> list[T]:
    """The tree in pieces of at most so many rows, in their order; one without rows is one piece."""
    count = len(leaves(tree)[0])
    return [map(lambda a, k=k: a[k : k + rows], tree) for k in range(0, max(1, count), rows)]


def add(a: T, b: T) -> T:
    """a + b, leaf by leaf."""
    return map(torch.add, a, b)


def sub(a: T, b: T) -> T:
    """a - b, leaf by leaf."""
    return map(torch.sub, a, b)


def zeros(tree: T) -> T:
    """Zeros in the shape of a tree."""
    return map(torch.zeros_like, tree)


def dot(a: T, b: T) -> Tensor:
    """The inner product over all leaves, a scalar."""
    parts = [(u * v).sum() for u, v in zip(leaves(a), leaves(b), strict=True)]
    return torch.stack(parts).sum() if parts else torch.zeros(())


def square_distance(a: T, b: T) -> Tensor:
    """|a - b|^2 over all leaves, a scalar."""
    parts = [(u - v).square().sum() for u, v in zip(leaves(a), leaves(b), strict=True)]
    return torch.stack(parts).sum() if parts else torch.zeros(())


def when(flag: Tensor, then: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """``then()`` where a scalar is positive, else ``otherwise()``: trees of one structure, shapes and types.

    For a single client only one of them is computed. Mapped over clients both are, and each client takes its own. No
    gradient flows through the flag.
    """
    if not mapped(flag):
        return then() if bool(flag > 0) else otherwise()
    return map(lambda a, b: torch.where(flag > 0, a, b), then(), otherwise())


def switch(state: Tree) -> float | None:
    """The flag by which ``when`` chooses for a client: the field that the type of its state names as ``switch``.

    An engine that maps over clients groups them by this flag, so that only one side is computed. None: the state has no
    such flag.
    """
    name = getattr(state, "switch", None)
    return None if name is None else float(getattr(state, name))


def mean(tree: T, weight_K: Tensor) -> T:
    """The weighted mean over the leading axis of each leaf; the weights need not sum to one."""
    share_K = weight_K / weight_K.sum()
    return map(lambda a: torch.tensordot(share_K.to(a.dtype), a, 1), tree)


def detach(tree: T) -> T:
    """The same values, without a graph."""
    return map(lambda a: a.detach(), tree)


def same_form(a: Tree, b: Tree) -> bool:
    """Whether two trees have the same structure, and leaves of the same types and shapes."""
    try:
        pairs = list(zip(leaves(a), leaves(map(_second, a, b)), strict=True))
    except (ValueError, TypeError):
        return False
    return all(
        isinstance(u, Tensor) and isinstance(v, Tensor) and (u.shape, u.dtype) == (v.shape, v.dtype) for u, v in pairs
    )


def _second(leaf: Tree, other: Tree) -> Tree:
    return other


def other_form(tree: Tree, like: Tree) -> str | None:
    """In words, how a tree's form differs from another's; None if they have the same form, as ``same_form`` says.

    >>> other_form({"w": torch.zeros(3)}, {"w": torch.zeros(2)})
    'w: (3,) float32 in place of (2,) float32'
    """
    if same_form(tree, like):
        return None
    new, old = named(tree), named(like)
    for path in dict.fromkeys([*old, *new]):
        is_now, was = (_form(leaves[path]) if path in leaves else "nothing" for leaves in (new, old))
        if is_now != was:
            return f"{path or 'the whole'}: {is_now} in place of {was}"
    return "the same tensors in other containers"


def _form(leaf: object) -> str:
    if not isinstance(leaf, Tensor):
        return "None" if leaf is None else f"a {type(leaf).__name__}"
    return f"{tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"


def same(a: Tree, b: Tree) -> bool:
    """Whether two trees have the same paths, types and bits."""
    one, other = named(a), named(b)
    return one.keys() == other.keys() and all(
        leaf.dtype == other[path].dtype and torch.equal(leaf, other[path]) for path, leaf in one.items()
    )


def copy(tree: T) -> T:
    """The same values in fresh, aligned memory, so that a result never depends on where its inputs are in memory."""
    return map(lambda a: a.detach().clone(memory_format=torch.contiguous_format), tree)


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A vector of numbers, made once: copying numbers to a device in every step would make the host wait."""
    with unmapped():
        return torch.tensor(values, dtype=dtype, device=device)


def nbytes(tree: Tree) -> int:
    """The size of a tree on the wire, in bytes."""
    return sum(a.numel() * a.element_size() for a in leaves(tree))


def not_finite(tree: Tree) -> str | None:
    """The path of the first leaf with a NaN or an infinity, or None."""
    if all(_finite(leaf) for leaf in leaves(tree)):
        return None
    return next(path for path, leaf in named(tree).items() if not _finite(leaf))


def _finite(leaf: Tensor) -> bool:
    return not leaf.is_floating_point() or bool(torch.isfinite(leaf).all())


def unmapped() -> AbstractContextManager[None]:
    """Inside the block, new tensors outlive the ``torch.func`` transform around them."""
    return torch._C._DisableFuncTorch()


def mapped(tree: Tree) -> bool:
    """Whether the leaves hold many clients at once, under ``torch.func.vmap``."""
    return any(_batched(a) for a in leaves(tree))


def _batched(a: Tensor) -> bool:
    while torch._C._functorch.is_functorch_wrapped_tensor(a):  # inside torch.func.grad it is wrapped twice
        if torch._C._functorch.is_batchedtensor(a):
            return True
        a = torch._C._functorch.get_unwrapped(a)
    return False
