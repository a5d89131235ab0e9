"""A network of the library is told in words that make it again, whatever its weights or its user changed of it."""

import jax.numpy as jnp
import pytest

from jdml.models import create
from jdml.models.vit import VisionTransformer
from jdml.registry import NETWORKS
from jdml.training.description import _of_model, build_model

OTHERS = {
    "jdml.models.vit:VisionTransformer": (
        {"grid": 24},
        {"activation": "gelu", "resampling": "dino"},
        {"pooling": "average", "grid": 32, "remat": True},
        {"width": 96, "depth": 2, "heads": 3, "dtype": jnp.bfloat16},
    ),
    "jdml.models.resnets:ResNet": ({"depth": 34, "pooling": "gem"},),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_told_and_made_again(name):
    record = NETWORKS[name]
    others = (*record.other_settings.values(), *OTHERS.get(record.make, ()))
    for settings in ({}, *others):
        made = create(name, dim=5, **settings)
        told = _of_model(made)
        assert build_model(told) == made
        assert set(told) == {"network", "dim", "settings"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("clip_b32", {"activation": "gelu"}),
        ("siglip_l16", {"activation": "gelu"}),
        ("dinov2_b14", {"grid": 16}),
        ("vit_b16", {"grid": 24}),
    ],
)
def test_it_is_called_after_what_it_has_most_of(name, settings):
    called = _of_model(create(name, dim=5, **settings))
    assert called["network"] == name
    assert called["settings"].items() >= settings.items()


def test_what_no_file_can_hold_is_a_class():
    """Read again with its module alone."""
    kind = "jdml.models.vit.VisionTransformer"
    assert _of_model(VisionTransformer(activation=abs)) == {"class": kind}
