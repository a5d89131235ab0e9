"""The description of a network in a run's file: every network of the library is rebuilt from it."""

import jax.numpy as jnp
import pytest

from jdml.models import create
from jdml.models.vit import VisionTransformer
from jdml.registry import NETWORKS
from jdml.runs.model_metadata import _of_model, build_model

OTHERS = {
    "vit_s16": (
        {"grid": 24, "activation": "gelu", "resampling": "dino", "pooling": "average"},
        {"width": 96, "depth": 2, "heads": 3, "dtype": jnp.bfloat16},
    )
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_described_and_rebuilt(name):
    for settings in ({}, *NETWORKS[name].other_settings.values(), *OTHERS.get(name, ())):
        model = create(name, dim=5, **settings)
        described = _of_model(model)
        assert build_model(described) == model
        assert set(described) == {"network", "dim", "settings"}


def test_settings_that_json_cannot_store_leave_the_class_name():
    """Loading it requires the module."""
    kind = "jdml.models.vit.VisionTransformer"
    assert _of_model(VisionTransformer(activation=abs)) == {"class": kind}
