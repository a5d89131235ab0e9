import jax
import jax.numpy as jnp
import pytest

from jdml.models.adapters import as_model
from jdml.models.embedding import uint8_to_float
from jdml.ops import sphere
from jdml.runs.inference import Trained


@pytest.fixture(scope="session")
def new_trained():
    """Make trained models of networks with new parameters, for images of a shape."""

    def make(network, shape, crop=None):
        variables = jax.jit(lambda: network.init(jax.random.key(0), jnp.zeros((1, *shape))))()
        return Trained(
            model=as_model(network),
            params=variables["params"],
            batch_stats=variables.get("batch_stats", {}),
            config={},
            class_names=(),
            step=0,
            metrics={},
            preprocess=uint8_to_float,
            normalize=sphere,
            crop=crop,
            input={"shape": list(shape), "dtype": "uint8"},
        )

    return make
