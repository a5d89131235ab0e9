"""Features of photographs by a frozen EfficientNet-Lite0, and the network that is trained on them."""

import functools
import hashlib
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.smoke import small
from jdml import data, models
from jdml.training import embed

BACKBONE, CHANNELS, SIDE = small(("efficientnet_lite0", 1280, 224), ("small", 64, 8))
NORMALIZE = models.normalizer("efficientnet_lite0")


def pooled(dataset: data.Dataset, weights: str | None) -> np.ndarray:
    """Return the backbone's pooled channels `[N, 1, 1, 1280]`: its head is the identity."""
    model = models.create(BACKBONE, dim=CHANNELS)
    variables = model.init(jax.random.key(0), jnp.zeros((1, SIDE, SIDE, 3)))
    if weights is not None:
        variables = models.load_weights(weights, variables)
    identity = {"kernel": jnp.eye(CHANNELS), "bias": jnp.zeros(CHANNELS)}
    params = {**variables["params"], "head": {"embedding": identity}}
    of_data = (variables["batch_stats"], dataset.images)
    return embed(model, params, *of_data, preprocess=NORMALIZE)[:, None, None].astype(np.float32)


@functools.cache
def load(
    data_dir: str | None, weights: str | None, features: str
) -> tuple[data.Dataset, data.Dataset]:
    """Return features ``[N, 1, 1, 1280]`` of the training and test classes, from a file for each folder and weights."""
    kept, made = Path(features), []
    digest = hashlib.sha256(str(data_dir).encode())
    digest.update(b"" if weights is None else Path(weights).read_bytes())
    for split in ("train", "test"):
        dataset = data.load(
            "cub", data_dir=data_dir, split=split, transform=data.conventional(SIDE)
        )
        file = kept / f"{split}-{digest.hexdigest()[:12]}.npy"
        if not file.exists():
            kept.mkdir(parents=True, exist_ok=True)
            np.save(file.with_suffix(".part.npy"), pooled(dataset, weights))
            file.with_suffix(".part.npy").rename(file)
        views = {"class": dataset.labels}
        made.append(data.Dataset("cub crops", np.load(file), dataset.labels, views))
    return made[0], made[1]


class Head(nn.Module):
    """A linear embedding of features."""

    dim: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embeds features `[B, 1, 1, C]`."""
        return models.EmbeddingHead(self.dim, name="head")(images)
