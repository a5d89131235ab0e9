"""A module outside the package: it registers a loss, a miner, a network, a data set, a method and a command."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np

import jdml
from jdml import ops
from jdml.cli.commands import COMMANDS, Command
from jdml.losses import compare
from jdml.ops import checks
from jdml.recipes import Method
from jdml.registry import DATASETS, LOSSES, MINERS, NETWORKS, Count, DataSet, Loss, Miner, Network
from jdml.training import CallbackResult
from jdml.training.alternation import make_callback


@ops.public(compare, margin=checks.finite)
def soft_contrastive_loss(embeddings, labels=None, *, margin=0.5, reduce_fn=jdml.mean, **options):
    """Compute the contrastive loss with a soft hinge: ``reduce_pos d + reduce_neg softplus (m - d)``."""

    def terms(c):
        push = jax.nn.softplus(margin - c.distances)
        return (c.distances, c.pairs.positive), (push, c.pairs.negative)

    return compare(embeddings, labels, **options).reduce_pairs(reduce_fn, terms)


def near_negative(radius=1.0):
    """Keep the negatives nearer than ``radius``."""
    return lambda key, distances, pairs: pairs._replace(
        negative=pairs.negative & (distances < radius)
    )


class LinearNet(nn.Module):
    """One dense layer over all pixels."""

    dim: int = 4

    @nn.compact
    def __call__(self, images, *, train=False):
        flat = images.astype(np.float32).reshape(len(images), -1)
        return nn.Dense(self.dim, name="embedding")(flat)


def load_bars(data_dir, split="train"):
    """Load images of one bar each, labelled by its place and its side."""
    places = np.arange(96) % 4
    images = np.zeros((96, 8, 8, 1), np.uint8)
    images[range(96), :, 2 * places] = 255
    bars = jdml.data.Dataset("bars", images, places, {"place": places, "side": places % 2})
    test = np.arange(96) < 32
    return bars if split == "all" else bars.select(test if split == "test" else ~test)


@dataclasses.dataclass(frozen=True)
class ShrinkingMethod(Method):
    """A pair loss; the network's weights shrink after each evaluation."""

    name = "shrinking"
    kind = "pair"
    loss = "triplet"
    needs_validation = True

    factor: float = 0.9
    """The weights are multiplied by it."""


@dataclasses.dataclass(frozen=True)
class ShrinkWeights:
    """Multiply the network's weights by a factor after each evaluation, and count."""

    factor: float
    config = {}

    def template(self, state):
        return np.zeros((), np.int32)

    def start(self, state):
        return self.template(state), state

    def update(self, count, step, state, metrics):
        model = jax.tree.map(lambda leaf: self.factor * leaf, state.params["model"])
        state = state._replace(params={**state.params, "model": model})
        return CallbackResult(count + 1, state, {"shrunk": int(count) + 1})


@make_callback.register
def _(method: ShrinkingMethod, *parts, **settings):
    return ShrinkWeights(method.factor)


@dataclasses.dataclass(frozen=True)
class Labellings:
    """Print the names of a data set's labels."""

    name: str
    """The data set."""

    def execute(self):
        print(*DATASETS[self.name].labellings)


def register():
    """Register everything, a line each."""
    LOSSES["soft_contrastive"] = Loss("soft_contrastive", "pair", "my_plugin:soft_contrastive_loss")
    MINERS["mine_near"] = Miner("my_plugin:near_negative", ("mine_near",))
    NETWORKS["linear"] = Network(
        "linear", "my_plugin:LinearNet", small_images=True, pooling=False, batch_norm=False
    )
    count = {"train": Count(4, 64), "test": Count(4, 32)}
    DATASETS["bars"] = DataSet(
        "bars", "arrays", "my_plugin:load_bars", "nothing", ("place", "side"), published=count
    )
    COMMANDS["labellings"] = Command(
        "labellings", "my_plugin:Labellings", "print what a data set is labelled by", "…"
    )
