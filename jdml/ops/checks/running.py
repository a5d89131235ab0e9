"""Checks of values that exist only at run time."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax.numpy as jnp
from jax import Array
from jax.experimental import checkify

_checking: contextvars.ContextVar[bool] = contextvars.ContextVar("jdml_checking", default=False)


def is_checking() -> bool:
    """Whether run-time checks are being traced (see :func:`jdml.checked`)."""
    return _checking.get()


@contextlib.contextmanager
def checking(enabled: bool) -> Iterator[None]:
    """Switch run-time checks on or off while a function is traced."""
    token = _checking.set(enabled)
    try:
        yield
    finally:
        _checking.reset(token)


def require(holds: Array, message: str, *values: Array) -> None:
    """Under :func:`jdml.checked`, raise for the first entry of ``holds`` that is False.

    Args:
        holds: boolean, a scalar or ``[N]``.
        message: a format string; ``{row}`` is the first offending row, ``{0}``, ``{1}`` … are ``values`` there.
        *values: arrays of the length of ``holds`` (or scalars) to show.
    """
    if not _checking.get() or holds.size == 0:
        return
    holds = jnp.atleast_1d(holds)
    row = jnp.argmin(holds)
    shown = {f"v{i}": jnp.broadcast_to(v, holds.shape)[row] for i, v in enumerate(values)}
    for i in range(len(values)):
        message = message.replace(f"{{{i}}}", f"{{v{i}}}")
    checkify.check(jnp.all(holds), message, row=row, **shown)  # type: ignore[arg-type]


def require_finite(name: str, values: Array, rows: Array | None = None) -> None:
    """Under :func:`jdml.checked`, raise for the first row that is not finite.

    Args:
        name: the argument's name.
        values: ``[N, …]``.
        rows: ``[N]`` bool, the rows that count; None for all.
    """
    finite = jnp.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    require(finite if rows is None else finite | ~rows, f"{name}[{{row}}] is not finite")
