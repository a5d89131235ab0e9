"""What a network does is tried on shapes, before any work: that it trains and evaluates, and carries what it can."""

import itertools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml.distributed import Tree
from jdml.models import train_flags
from jdml.models.adapters import Model, embed_in_training
from jdml.models.base_adapter import NORM, Call, HoldsLayers, Wrapped
from jdml.models.from_linen import FromLinen
from jdml.models.preprocess import Preprocess

ROWS = 2
"""So many rows are tried: what has the shape of one row's batch shows."""
_row_counts = itertools.cycle(range(ROWS, 64))
_log = logging.getLogger(__name__)


def check_network(model: Model, preprocess: Preprocess, sample: Tree) -> None:
    """Refuse a network that cannot be trained, evaluated or saved as it is. The library's own are not tried.

    Args:
        model: as :func:`jdml.models.adapters.as_model` returns it.
        preprocess: what stands between stored images and the model.
        sample: one row of the data set.

    Raises:
        ValueError: parameters that are not floating point, variables whose shapes or types change in training, a
            network that would be trained in evaluation mode or cannot be switched to it.
    """
    if not isinstance(model, Wrapped):
        return
    # Each check of a module tries another number of rows: a program that is kept calls no layer that could be watched.
    rows = next(_row_counts) if isinstance(model, HoldsLayers) else ROWS
    trial = _Trial(preprocess, sample, rows)
    if isinstance(model, FromLinen):
        model.tried(trial)
        return
    if isinstance(model, HoldsLayers):
        _check_modes(model, trial)
        return
    trial(model, True)
    trial(model, False)


class _Trial:
    """Traces a network's training or evaluation, and looks at its arrays."""

    def __init__(self, preprocess: Preprocess, sample: Tree, rows: int) -> None:
        self._preprocess, self._sample, self._number = preprocess, sample, rows

    def __call__(self, model: Any, train: bool) -> None:
        """Go through the network once; where it trains, from carried variables to carried variables."""
        images, key = self._rows(1), jax.eval_shape(lambda: jax.random.key(0))
        fresh = jax.eval_shape(lambda k, x: model.init(k, self._preprocess(x)), key, images)
        params, stats = fresh["params"], fresh.get("batch_stats", {})
        _check_params(params)

        def trained(stats: Tree, params: Tree, images: Tree, key: jax.Array) -> Tree:
            inputs = self._preprocess(images)
            return embed_in_training(model, params, stats, inputs, key)[1]

        def evaluated(stats: Tree, params: Tree, images: Tree) -> Tree:
            variables = {"params": params, "batch_stats": stats}
            return model.apply(variables, self._preprocess(images), train=False)

        if train:
            self._trained(trained, stats, params, key)
        else:
            jax.eval_shape(evaluated, stats, params, self._rows(self._number))

    def calls(self, model: HoldsLayers, train: bool) -> list[Call]:
        """How batch norm and dropout are called."""
        calls: list[Call] = []
        with model.watching(calls):
            self(model, train)
        return calls

    def _trained(self, trained: Any, stats: Tree, params: Tree, key: Any) -> None:
        try:
            after = jax.eval_shape(trained, stats, params, self._rows(self._number), key)
        except Exception as error:  # whatever a user's network raises
            _explain(error)
            try:
                jax.eval_shape(trained, stats, params, self._rows(1), key)
            except Exception:  # one row fails too: it was not for the number of rows
                raise error from None
            raise ValueError(
                f"model must take batches of any size, but takes 1 row and not {self._number}, as one does that holds "
                f"a variable of a batch's shape (a cache): {str(error).splitlines()[0]}"
            ) from error
        _check_carried(stats, after)

    def _rows(self, number: int) -> Tree:
        def one(leaf: Any) -> jax.ShapeDtypeStruct:
            dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
            return jax.ShapeDtypeStruct((number, *np.shape(leaf)[1:]), dtype)

        return jax.tree.map(one, self._sample)


def _explain(error: Exception) -> None:
    """Say it in words when a flag was handed on to what has none of its name."""
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        flag = str(error).rpartition(" argument ")[2].strip("'")
        if train_flags.is_flag(flag):
            raise ValueError(
                f"model takes any keyword and hands {flag} on to what does not take it: name its flag among the "
                f"arguments of its __call__; {error}"
            ) from error


def _check_modes(model: HoldsLayers, trial: _Trial) -> None:
    """Layers that behave otherwise in training do so, and in evaluation they do not."""
    trained = trial.calls(model, True)
    stuck = {call.layer for call in trial.calls(model, False) if not call.evaluates}
    if stuck:
        raise ValueError(
            f"model must be able to evaluate, but without training its {_all(stuck)} acts as in training: leave its "
            f"mode to its attribute, or switch it by a flag ({train_flags.KNOWN})"
        )
    if model.frozen:
        _log.warning(
            "%s: in evaluation mode in training, too, as if frozen",
            train_flags.several(model.frozen),
        )
    if model.woken and any(call.layer == NORM and not call.evaluates for call in trained):
        _log.warning(
            "%s: came in evaluation mode, as all of the network, and is trained; for it to stay, its call must tell it",
            train_flags.several(model.woken),
        )
    idle = {call.layer for call in trained if call.evaluates and not _is_frozen(call, model)}
    if idle:
        _tell_idle(model, idle, _awake(trained), trial)


def _is_frozen(call: Call, model: HoldsLayers) -> bool:
    """Whether it is batch norm that stays in evaluation mode by its attribute."""
    return call.layer == NORM and not call.told and bool(model.frozen)


def _awake(calls: list[Call]) -> int:
    return sum(not call.evaluates for call in calls)


def _tell_idle(model: HoldsLayers, idle: set[str], awake: int, trial: _Trial) -> None:
    """Batch norm or dropout that does nothing in training: frozen, or never told."""

    def wakes(told: dict[str, Any]) -> bool:
        try:
            calls = trial.calls(model.telling(**told), True)
        except Exception:  # what it turns is something else
            return False
        return _awake(calls) > awake

    turned = train_flags.unknown_flags(type(model.module).__call__, given=2)
    flags = [
        name
        for name, other in turned.items()
        if (awake == 0 if other is None else wakes({name: other}))
    ]
    train_flags.tell_idle(_all(idle), flags, are_all=awake == 0)


def _all(kinds: set[str]) -> str:
    return " and ".join(sorted(kinds))


def _check_params(params: Tree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ValueError(
                f"model's parameters must be floating point, got {leaf.dtype} in params{jax.tree_util.keystr(path)}"
            )


def _check_carried(before: Tree, after: Tree) -> None:
    """What a step carries has the same arrays before and after it."""
    had, has = (
        {
            jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (before, after)
    )
    for name in (*had, *has):
        if had.get(name) != has.get(name):
            shown = name.replace("['~", "['")
            old, new = had.get(name, "not there"), has.get(name, "gone")
            if "[" in old and old.partition("[")[2] == new.partition("[")[2]:
                raise ValueError(
                    f"model must keep the types of what it carries from step to step, but {shown} was {old} and is "
                    f"{new} after a step: give it inputs of the type that it begins with (preprocess=)"
                )
            raise ValueError(
                f"model must keep the shapes of what it carries from step to step, but {shown} was {old} and is {new} "
                f"after a step of {ROWS} rows: such variables (sown values, caches of a batch) cannot be trained with"
            )
