"""Programs in ONNX's format give the embeddings of the networks they were written from."""

import flax.linen as nn
import jax
import numpy as np
import pytest

import jdml
from jdml.registry import NETWORKS
from jdml.runs.export import export_onnx

pytestmark = pytest.mark.slow  # other libraries
WHY = "writes and runs ONNX files: pip install jdml[onnx]"

# They differ from others in width, depth and patch alone, or, as resnet50, in the order of layers that others have.
ALIKE = "resnet50 vit_b16 dinov2_b14 dinov2_b14_reg clip_b32 siglip_so400m14"
OTHERS = [name for name in NETWORKS if name not in ALIKE.split() and "_l1" not in name]
CASES = [("small", {"pooling": "gem"}), *((name, {}) for name in OTHERS)]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_onnx_program_equals_the_network(name, settings, new_trained):
    pytest.importorskip("jax2onnx", reason=WHY)
    onnxruntime = pytest.importorskip("onnxruntime", reason=WHY)
    record, side = NETWORKS[name], 33
    if patch := record.settings.get("patch"):
        side = 4 * patch
        settings = {"width": 64, "depth": 2, "heads": 4, "grid": 4}
    network = jdml.models.create(name, dim=8, **settings)
    model = new_trained(network, (side, side, 1 if record.small_images else 3))
    session = onnxruntime.InferenceSession(export_onnx(model))
    images = np.random.default_rng(1).integers(0, 256, (5, *model.input["shape"]), np.uint8)
    expected = model.embed(images)
    for rows in (5, 1):
        (found,) = session.run(["embeddings"], {"images": images[:rows]})
        np.testing.assert_allclose(found, expected[:rows], atol=1e-4)


class Sorts(nn.Module):
    """A network with a function that only Python has."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(3)(x.mean((1, 2)))
        return jax.pure_callback(lambda x: np.sort(x), x, x, vmap_method="sequential")


def test_network_that_onnx_cannot_hold_is_refused(new_trained):
    pytest.importorskip("jax2onnx", reason=WHY)
    with pytest.raises(ValueError, match=r"^the network\b.*callback"):
        export_onnx(new_trained(Sorts(), (4, 4, 3)))
