"""What an editor and a type checker see of calls: of losses, by the options that they hand on, and of `fit`."""

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import jdml
from jdml.losses import assignment, comparison, potential

ROOT = Path(jdml.__file__).parents[1]


def check_calls(code: str, folder: Path) -> None:
    """Assert that mypy refuses the lines that end in ``# wrong``, and no other."""
    file = folder / "calls.py"
    file.write_text(textwrap.dedent(code))
    lines = file.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {int(line.split(":")[1]) for line in errors} == wrong, done.stdout + done.stderr


DOORS = {
    comparison.compare: comparison.CompareOptions,
    assignment.assign: assignment.AssignOptions,
    potential.charge: potential.ChargeOptions,
}


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_typed_options_are_the_keywords_of_their_function(door):
    hints = get_type_hints(door)
    parameters = inspect.signature(door).parameters.values()
    taken = {p.name: hints[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    options = DOORS[door]
    assert get_type_hints(options) == taken
    assert list(options.__annotations__) == list(taken)
    assert options.__required_keys__ == frozenset()


@pytest.mark.parametrize(
    "name",
    [name for name in jdml.losses.__all__ if hasattr(getattr(jdml.losses, name), "__wrapped__")],
)
def test_a_loss_is_typed_by_the_options_that_it_spells_out(name):
    loss = getattr(jdml.losses, name)
    written = inspect.signature(loss.__wrapped__).parameters
    options = {p.annotation for p in written.values() if p.kind is p.VAR_KEYWORD}
    handed_on = set(inspect.signature(loss).parameters) - set(written)
    assert handed_on == {key for option in options for key in get_args(option)[0].__annotations__}


OF_LOSSES = """
    from functools import partial

    import jax.numpy as jnp

    import jdml
    from jdml.mining import easy_positive, semi_hard_negative

    x, p = jnp.eye(4), jnp.eye(2, 4)
    y = jnp.array([0, 0, 1, 1])
    m = y == 0

    jdml.triplet_loss(x, y, margin=0.1, where=m)
    jdml.triplet_loss(x, y, mergin=0.1)  # wrong
    jdml.triplet_loss(x, y, wher=m)  # wrong
    jdml.triplet_loss(x, y, mine=3)  # wrong
    jdml.triplet_loss(x, y, mine=easy_positive(), normalize=jdml.ball, anchor_block=64)
    jdml.triplet_loss(x, y, mine=jdml.chain(easy_positive(), semi_hard_negative(0.1)), reduce_fn=jnp.sum)
    jdml.triplet_loss(x, y, anchor_block="large")  # wrong
    jdml.losses.triplet_loss(x, y, references=x, reference_labels=y, margin=jnp.float32(0.1))
    jdml.losses.triplet_loss(x, y, reference=x)  # wrong
    jdml.losses.triplet_loss(x, y, x)  # wrong
    jdml.info_nce_loss(x, references=x, axis_name="data")
    jdml.margin_loss(x, y, beta="1.2")  # wrong
    jdml.proxy_anchor_loss(x, y, p, class_block="auto", weights=jnp.ones(4))
    jdml.proxy_anchor_loss(x, y, p, anchor_block="auto")  # wrong
    jdml.proxy_anchor_loss(x, y)  # wrong
    jdml.potential_field_loss(x, y, where=m)
    jdml.potential_field_loss(x, y, class_block=3)  # wrong
    jdml.nir_loss(x, y, shape="exponential")  # wrong
    jdml.checked(jdml.sup_con_loss)(x, y, temperature=0.1, where=m)
    jdml.checked(jdml.sup_con_loss)(x, y, temprature=0.1)  # wrong
    jdml.matryoshka(jdml.arcface_loss, dims=(2, 4))(x, y, p, margin=0.3, where=m)
    jdml.matryoshka(jdml.arcface_loss, dims=(2, 4))(x, y, p, mine=None)  # wrong
    partial(jdml.circle_loss, gamma=64.0, key=None)(x, y)
    partial(jdml.circle_loss, gama=64.0)  # wrong
    jdml.nearest(x, x, k=1, exclude_self=True)
    jdml.nearest(x, x, k=1, without_self=True)  # wrong
    jdml.tripet_loss(x, y)  # wrong
    jdml.losses.tripet_loss(x, y)  # wrong
    jdml.trainig  # wrong
"""

OF_FIT = """
    from collections.abc import Iterator, Mapping
    from typing import Any

    import flax.linen as nn
    import jax
    import numpy as np
    from flax import nnx

    import jdml
    from jdml.data import ClassBatchSampler, Dataset
    from jdml.training import Embedder, fit

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
            return x

    class Other(nnx.Module):
        def __call__(self, x: jax.Array) -> jax.Array:
            return x

    class Features:
        images = {"image": np.zeros((4, 2)), "text": np.zeros((4, 3))}
        labels = np.zeros(4, np.int32)

    def rows() -> Iterator[np.ndarray]:
        while True:
            yield np.arange(4)

    def evaluate(embedder: Embedder) -> Mapping[str, float]:
        return {"score": float(embedder(np.zeros((4, 2))).sum())}

    def make(optimizer: Any, train: Dataset) -> None:
        objective = jdml.objectives.pair(jdml.triplet_loss, margin=0.1)
        batches = ClassBatchSampler(train.labels, 2, 2)
        result = fit(Network(), objective, optimizer, train, batches, steps=3, evaluate=evaluate)
        result.best_params["model"]
        result.best_parameters  # wrong
        fit(Other(), objective, optimizer, Features(), rows(), steps=3, normalize=jdml.sphere)
        jdml.training.fit(Network(), objective, optimizer, train, batches, step=3)  # wrong
        fit(Network(), jdml.triplet_loss, optimizer, train, batches, steps=3)  # wrong
        fit("cub", objective, optimizer, train, batches, steps=3)  # wrong
        fit(Network(), objective, optimizer, (train.images, train.labels), batches, steps=3)  # wrong
        fit(Network(), objective, optimizer, train, 32, steps=3)  # wrong
        fit(Network(), objective, optimizer, train, batches, steps=3, monitor=evaluate)  # wrong
"""


@pytest.mark.parametrize("calls", [OF_LOSSES, OF_FIT], ids=["losses", "fit"])
def test_mypy_refuses_the_wrong_calls_and_no_other(calls, tmp_path):
    check_calls(calls, tmp_path)
