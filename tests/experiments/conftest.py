"""Studies are tried on networks that compile in no time."""

import flax.linen as nn
import jax
import pytest

import jdml


class LinearNet(nn.Module):
    """Compiles in no time, where a study's network takes seconds for every loss."""

    dim: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        return nn.Dense(self.dim)(images.reshape(len(images), -1))


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EpsNet", "SmallConvNet", "ResNet20V2"):
        monkeypatch.setattr(jdml.models, name, LinearNet)
