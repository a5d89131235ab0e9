"""How a formula becomes a public function: jitted, checked, its numbers traced and everything else static."""

import functools
import inspect
import re
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import checkify

from jdml.ops import checks, meshes
from jdml.ops.numerics import SHARPEST, bounded

P = ParamSpec("P")
R = TypeVar("R")


def public(
    options: Callable[..., Any] | None = None, /, **constraints: checks.Constraint
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a pure function: jit it, check its hyper-parameters, and spell out its ``**options``.

    Numbers and arrays are traced, so that other values recompile nothing. Booleans, strings, functions and sizes
    (the hyper-parameters constrained by :func:`jdml.ops.checks.count` and its like) are static. Python numbers are
    checked before tracing, traced ones under :func:`checked`.

    The docstring is completed: arguments that it does not describe are described as in that of ``options``; what is
    returned and raised is added where nothing is said of it.

    Args:
        options: the function that the decorated one hands its ``**options`` to. Its keyword-only parameters take
            the place of ``**options`` in the signature.
        **constraints: for each hyper-parameter, a constraint such as :func:`jdml.ops.checks.positive`.

    Returns:
        The decorator.

    Raises:
        TypeError: when the decorated function is called with a keyword that it does not have.

    Example:
        >>> @public(power=checks.positive)
        ... def scale(x: Array, *, power: float = 1.0) -> Array:
        ...     return power * x
        >>> scale(np.ones(2), power=-1)
        Traceback (most recent call last):
        ...
        ValueError: power must be > 0, got -1
    """
    fixed = frozenset(name for name, each in constraints.items() if each.integer) | _SIZES

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = _spelled_signature(function, options)
        spell_documentation(function, options, signature, constraints)
        flags = [p.name for p in signature.parameters.values() if isinstance(p.default, bool)]

        def evaluate(traced: list[Any], static: _Static) -> R:
            arguments = static.merge(traced)
            with checks.checking(static.checking):
                for name, constraint in constraints.items():
                    constraint(name, arguments[name])
                    if name not in fixed and checks.is_integer(arguments[name]):
                        arguments[name] = jnp.asarray(arguments[name], jnp.float32)
                    if name not in fixed and arguments[name] is not None:
                        least = 1.0 / SHARPEST if constraint is checks.positive else -SHARPEST
                        arguments[name] = bounded(arguments[name], least=least)

                def call(arguments: dict[str, Any]) -> R:
                    bound = inspect.BoundArguments(signature, arguments)
                    return function(*bound.args, **bound.kwargs)

                result: R = meshes.spread(call, arguments)
                return result

        evaluate.__name__ = evaluate.__qualname__ = function.__name__
        compiled = jax.jit(evaluate, static_argnums=1)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                unknown = [name for name in kwargs if name not in signature.parameters]
                near = checks.did_you_mean(unknown[0], signature.parameters) if unknown else ""
                raise TypeError(f"{function.__name__}: {error}{near}") from None
            bound.apply_defaults()
            bound.arguments = {n: checks.as_array(v) for n, v in bound.arguments.items()}
            for name, constraint in constraints.items():
                constraint(name, bound.arguments[name])
            for name in flags:
                bound.arguments[name] = checks.check_flag(name, bound.arguments[name])
            for name, value in bound.arguments.items():
                if name in _CHECKS:
                    _CHECKS[name](name, value)
                checks.check_numbers(name, value)
                checks.check_fixed_shape(name, value)
            _check_classes(bound.arguments)
            numbers = {n: _as_number(v, n in fixed) for n, v in bound.arguments.items()}
            return compiled(*_split(numbers))

        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.constraints = constraints  # type: ignore[attr-defined]
        return wrapper

    return decorate


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make the same function with run-time values checked: labels out of range, NaN, hyper-parameters that are traced.

    Built on :mod:`jax.experimental.checkify`. Call the result outside ``jit``; to check a gradient, check the
    function that computes it: ``checked(jax.value_and_grad(loss))``. Arrays on a mesh are brought to one device.

    Args:
        function: a loss, or any function that calls losses and is not jitted itself.

    Returns:
        A function of the same signature.

    Raises:
        ValueError: on call, naming the argument, the offending row and its value.

    Example:
        >>> import jax.numpy as jnp, jdml
        >>> try:
        ...     jdml.checked(jdml.proxy_anchor_loss)(jnp.ones((2, 3)), jnp.array([0, 7]), jnp.eye(3))
        ... except ValueError as error:
        ...     print(error)
        labels[1] is 7, expected 0…2 (`check` failed)
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        traced, static = _split({"args": args, "kwargs": kwargs})
        # Through the host: on another device an array keeps the type of its mesh.
        traced = [
            x if meshes.mesh_of(x) is None else jnp.asarray(jax.device_get(x)) for x in traced
        ]

        def evaluate(values: list[Any]) -> R:
            arguments = static.merge(values)
            with checks.checking(True):
                return function(*arguments["args"], **arguments["kwargs"])

        error, result = checkify.checkify(evaluate, errors=checkify.user_checks)(traced)
        error.throw()
        return result

    return wrapper


class _Static(NamedTuple):
    """The part of a call that is compiled in: its structure, and every leaf that is not an array."""

    structure: Any
    leaves: tuple[Hashable, ...]
    checking: bool

    def merge(self, traced: list[Any]) -> dict[str, Any]:
        values = iter(traced)
        leaves = [next(values) if leaf is _TRACED else leaf for leaf in self.leaves]
        arguments: dict[str, Any] = jax.tree.unflatten(self.structure, leaves)
        return arguments


_TRACED = object()
"""Stands for a traced leaf among the static ones."""
_PER_CLASS = {"proxies", "beta"}
_SIZES = frozenset({"anchor_block", "class_block"})
_LABELS = ("labels", "reference_labels", "ids", "reference_ids")
_CHECKS: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("normalize", "reduce_fn"), checks.check_function),
    **dict.fromkeys(_SIZES, checks.block),
    **dict.fromkeys(_LABELS, checks.check_label_values),
}


def _check_classes(arguments: dict[str, Any]) -> None:
    """Refuse labels of classes without a proxy or a boundary, where the labels are NumPy's and all of them are here."""
    if checks.is_checking() or arguments.get("axis_name") is not None:
        return  # said by checked; here is a part of the classes
    for name in _PER_CLASS & arguments.keys():
        of_classes = arguments[name]
        if isinstance(of_classes, Array | np.ndarray) and of_classes.ndim > 0:
            checks.check_classes(
                arguments.get("labels"), of_classes.shape[0], name, arguments.get("where")
            )


def _as_number(value: Any, is_size: bool) -> Any:
    """Return a size as Python's integer, which is static, and another whole number as a float, which is traced."""
    if is_size:
        return int(value) if isinstance(value, np.integer) else value
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _split(arguments: dict[str, Any]) -> tuple[list[Any], _Static]:
    """Tell the traced leaves of a call, arrays and floats, from the static ones."""
    leaves, structure = jax.tree.flatten(arguments)
    traced = [leaf for leaf in leaves if _is_traced(leaf)]
    static = tuple(_TRACED if _is_traced(leaf) else leaf for leaf in leaves)
    return traced, _Static(structure, static, checks.is_checking())


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, float | np.generic | np.ndarray | Array)


def _spelled_signature(
    function: Callable[..., Any], options: Callable[..., Any] | None
) -> inspect.Signature:
    """The signature of ``function`` with ``**options`` replaced by the keywords of ``options``, ``reduce_fn`` last."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    shared = [] if options is None else list(inspect.signature(options).parameters.values())
    shared = [p for p in shared if p.kind is p.KEYWORD_ONLY]
    last = [p for p in own if p.name == "reduce_fn"]
    parameters = [p for p in own if p.name != "reduce_fn"] + shared + last
    return signature.replace(parameters=[_Parameter.like(p) for p in parameters])


class _Parameter(inspect.Parameter):
    """A parameter that writes a function of this library, its default, by name: ``jdml.sphere``, not an address."""

    @classmethod
    def like(cls, other: inspect.Parameter) -> "_Parameter":
        return cls(other.name, other.kind, default=other.default, annotation=other.annotation)

    def __str__(self) -> str:
        return self._named(super().__str__())

    def _format(self, **settings: Any) -> str:
        """Return the text in a signature from Python 3.14 on."""
        # No one's public name, so that its types are unknown; before 3.14 nobody calls it.
        return self._named(super()._format(**settings))  # type: ignore[misc]

    def _named(self, text: str) -> str:
        module = getattr(self.default, "__module__", None) or ""
        if not (callable(self.default) and module.startswith("jdml.")):
            return text
        return text.replace(repr(self.default), f"jdml.{self.default.__name__}")


def spell_documentation(
    function: Callable[..., Any],
    options: Callable[..., Any] | None = None,
    signature: inspect.Signature | None = None,
    constraints: Mapping[str, checks.Constraint] = MappingProxyType({}),
) -> None:
    """Complete a docstring: shared arguments as ``options`` describes them, what is returned, and what is refused."""
    documentation = inspect.getdoc(function)
    if documentation is None:
        return
    signature = signature or inspect.signature(function)
    line, *parts = re.split(rf"^({'|'.join(_SECTIONS)}):\n", f"{documentation}\n", flags=re.M)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    own = _entries(sections.get("Args", ""))
    entries = {**_REDUCTION, **_entries(inspect.getdoc(options) or ""), **own}
    described = "".join(entries.get(name, "") for name in signature.parameters)
    if described:
        sections["Args"] = f"{described}\n"
    if "reduce_fn" in signature.parameters:
        sections.setdefault("Returns", "    A scalar; with ``reduce_fn=None`` its terms.\n\n")
    if "TypeError:" not in sections.get("Raises", ""):
        wrong = [f"``{name}`` not {each.expected}" for name, each in constraints.items()]
        refused = "    TypeError: arguments of the wrong kind.\n"
        refused += f"    ValueError: {', '.join(['shapes that do not fit', *wrong])}.\n"
        refused = refused.replace("not other than", "equal to")
        sections["Raises"] = refused + sections.get("Raises", "\n")
    spelled = [f"{name}:\n{sections[name]}" for name in _SECTIONS if name in sections]
    function.__doc__ = "".join([line, *spelled]).rstrip()


_REDUCTION = {
    "reduce_fn": "    reduce_fn: applied to the valid rows; None gives ``[B]``.\n",
}
_SECTIONS = (
    "Formula",
    "Args",
    "Returns",
    "Raises",
    "Implementation notes",
    "Paper settings",
    "Reference",
    "Example",
)


def _entries(documentation: str) -> dict[str, str]:
    """Return the descriptions of arguments by name."""
    entries = re.finditer(r"^    (\w+):.*\n(?:     +.*\n)*", f"{documentation}\n", re.M)
    return {match[1]: match[0] for match in entries}
