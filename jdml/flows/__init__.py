"""Conditional normalizing flows: RealNVP and GLOW couplings, Flax parameters over distrax bijectors.

The only room that imports distrax (extra ``flows``).
"""

import warnings

from jdml._optional_imports import require_package

with warnings.catch_warnings():
    # TensorFlow Probability, which distrax stands on, looks up a name that JAX has deprecated.
    warnings.filterwarnings("ignore", message="jax.core.pytype_aval_mappings")
    require_package("distrax", "jdml.flows (and NIR)")
    import distrax  # noqa: F401 - before the modules below import it

from jdml.flows.conditional import PRESETS, ConditionalFlow, preset
from jdml.flows.layers import Permute

__all__ = ["PRESETS", "ConditionalFlow", "Permute", "preset"]
