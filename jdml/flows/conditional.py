"""The conditional flow: its blocks, its density, its sizes."""

from typing import Any, Literal, NamedTuple, get_args

import distrax
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.flows.layers import (
    ActNorm,
    Linear,
    Net,
    Permute,
    start_of_linear,
    unbound,
    with_condition,
)
from jdml.ops import checks
from jdml.ops.numerics import accumulate_in
from jdml.registry.losses import CONDITIONING

__all__ = ["PRESETS", "ConditionalFlow", "preset"]

Coupling = Literal["glow", "realnvp"]
Mixing = Literal["permutation", "linear"]
Conditioning = Literal["dense", "start", "mid", "end", "embedded"]

PRESETS: dict[str, dict[str, Any]] = {
    "released": {"num_blocks": 5, "hidden": 128, "depth": 8},
    "paper": {"num_blocks": 8, "hidden": 128, "depth": 3},
    "glow": {"num_blocks": 8, "hidden": 128, "depth": 3, "mixing": "linear", "actnorm": True},
}
"""NIR's flow as released, and as printed (the paper does not give the depth of the nets); and Glow of the printed size
with all three of its parts: activation normalization, invertible 1×1 mixing, affine coupling."""

_CHOICES = {"coupling": Coupling, "mixing": Mixing, "conditioning": Conditioning}


def preset(name: str, dim: int, condition_dim: int, **changes: Any) -> "ConditionalFlow":
    """Make a :class:`ConditionalFlow` of a known size.

    Args:
        name: ``"released"`` (5 blocks, 8-layer nets, width 128), ``"paper"`` (8 blocks, 3-layer nets, width 128) or
            ``"glow"`` (that size, with activation normalization and learned mixing).
        dim: D.
        condition_dim: width of the condition.
        **changes: other attributes of the flow.

    Returns:
        The flow.

    Raises:
        ValueError: another name.

    Example:
        >>> preset("paper", 16, 16).num_blocks
        8
    """
    checks.one_of("name", name, PRESETS)
    return ConditionalFlow(dim, condition_dim, **{**PRESETS[name], **changes})


class ConditionalFlow(nn.Module):
    """An invertible map of vectors, different for every condition: ``ζ = τ⁻¹(x | c)``.

    Each block mixes the dimensions and then lets one half be scaled and shifted by what a small net makes of the other
    half and the condition. With latents ``ζ ~ N(0, 1)`` it is a conditional density:
    ``log p(x | c) = log N(ζ; 0, 1) + log|det ∂ζ/∂x|``.

    Attributes:
        dim: D, at least 2.
        condition_dim: D_c.
        num_blocks: blocks, one after the other.
        hidden: width of the nets.
        depth: linear layers of each net, ReLU between them.
        coupling: ``"glow"``: both halves in turn in every block; ``"realnvp"``: one half per block, alternating.
        mixing: ``"permutation"``: fixed, drawn from the seed; ``"linear"``: GLOW's learned invertible matrix, a
            permutation times a lower times an upper triangular one.
        clamp: c; log-scales are ``c · 0.636 · atan(·)`` and stay within ±c.
        conditioning: where the condition enters: ``"dense"`` every block, ``"start"``, ``"mid"`` or ``"end"`` that
            block only, ``"embedded"`` every block, through a net of two layers.
        actnorm: whether each block begins with a learned scale and shift per dimension, set by the batch that ``init``
            gets so that it leaves with mean 0 and variance 1. :func:`jdml.objectives.with_nir`, which has no batch yet,
            gives it random unit vectors, which is no worse (``experiments/nir``).
        seed: of the permutations.

    Implementation notes:
        All arithmetic is float32 (float64 for float64 inputs). A net's layers begin as uniform ±1/√fan-in, the last
        one included: the flow does not start as the identity. Of an odd D the first half is ``round(D / 2)``.

    Paper settings:
        Non-isotropy regularization: the unit-norm proxy of a sample's class as condition, clamp 2, sizes in
        :data:`jdml.flows.PRESETS`.

    Reference:
        Dinh, Sohl-Dickstein & Bengio, *Density Estimation Using Real NVP*; Kingma & Dhariwal, *Glow*; Roth, Vinyals &
        Akata, *Non-isotropy Regularization for Proxy-based Deep Metric Learning*, eq. 7.

    Example:
        >>> import jax
        >>> flow = ConditionalFlow(dim=4, condition_dim=3, num_blocks=2, hidden=8, depth=2)
        >>> x, c = jnp.ones((5, 4)), jnp.ones((5, 3))
        >>> params = flow.init(jax.random.key(0), x, c)
        >>> latents, log_det = flow.apply(params, x, c)
        >>> latents.shape, log_det.shape
        ((5, 4), (5,))
        >>> back, _ = flow.apply(params, latents, c, method="inverse")
        >>> bool(jnp.allclose(back, x, atol=1e-5))
        True
        >>> flow.apply(params, c, method="distribution").log_prob(x).shape
        (5,)
    """

    dim: int
    condition_dim: int
    num_blocks: int = 5
    hidden: int = 128
    depth: int = 8
    coupling: Coupling = "glow"
    mixing: Mixing = "permutation"
    clamp: float = 2.0
    conditioning: Conditioning = CONDITIONING
    seed: int = 0
    actnorm: bool = False

    def setup(self) -> None:
        """Check the sizes and name the parts."""
        for name in ("dim", "condition_dim", "num_blocks", "hidden", "depth"):
            checks.count(name, getattr(self, name))
        if self.dim < 2:
            raise ValueError(
                f"dim must be at least 2 for one half to move the other, got {self.dim}"
            )
        for name, choices in _CHOICES.items():
            checks.one_of(name, getattr(self, name), get_args(choices))
        checks.positive("clamp", self.clamp)
        self.nets = [
            [Net(self.hidden, self.depth, 2 * len(range(self.dim)[half.moved])) for half in halves]
            for halves in self._halves()
        ]
        if self.conditioning == "embedded":
            self.embedding = Net(self.hidden, 2, self.condition_dim)
        if self.actnorm:
            self.norms = [ActNorm(self.dim) for _ in range(self.num_blocks)]
        if self.mixing == "linear":
            starts = [start_of_linear(self.dim, self.seed + i) for i in range(self.num_blocks)]
            self.triangles = [
                self.param(f"mixing_{i}", lambda _, start=triangles: jnp.asarray(start))
                for i, (_, triangles, _) in enumerate(starts)
            ]

    def __call__(self, x: Array, condition: Array) -> tuple[Array, Array]:
        """:meth:`forward`."""
        return self.forward(x, condition)

    def forward(self, x: Array, condition: Array) -> tuple[Array, Array]:
        """Map data to latents.

        Args:
            x: ``[B, D]``.
            condition: ``[B, D_c]``.

        Returns:
            Latents ``[B, D]``, and ``log|det ∂latents/∂x|`` ``[B]``.

        Raises:
            TypeError: arrays that are not floating.
            ValueError: shapes that do not fit, parameters of other sizes.
        """
        x, condition = self._check_inputs("x", x, condition)
        log_det = jnp.zeros(x.shape[0], x.dtype)
        for block in range(self.num_blocks):
            for bijector in self._block(block, self._conditions(condition), self.nets, x):
                x, change = bijector.forward_and_log_det(x)
                log_det = log_det + change
        return x, log_det

    def inverse(self, latents: Array, condition: Array) -> tuple[Array, Array]:
        """Map latents to data.

        Args:
            latents: ``[B, D]``.
            condition: ``[B, D_c]``.

        Returns:
            ``x [B, D]``, and ``log|det ∂x/∂latents|`` ``[B]``.

        Raises:
            TypeError: arrays that are not floating.
            ValueError: shapes that do not fit, parameters of other sizes.
        """
        latents, condition = self._check_inputs("latents", latents, condition)
        x, log_det = latents, jnp.zeros(latents.shape[0], latents.dtype)
        for bijector in reversed(self._bijectors(self._conditions(condition), self.nets)):
            x, change = bijector.inverse_and_log_det(x)
            log_det = log_det + change
        return x, log_det

    def distribution(self, condition: Array) -> distrax.Distribution:
        """Make the density of the data, one per condition.

        Args:
            condition: ``[B, D_c]``.

        Returns:
            A distribution of batch shape ``[B]`` and event shape ``[D]``: ``log_prob(x [B, D])``,
            ``sample(seed=key, sample_shape=n)``. It holds the parameters and outlives ``apply``.

        Raises:
            TypeError: a condition that is not floating.
            ValueError: a condition of another width, parameters of other sizes.
        """
        checks.check_embeddings("condition", condition, dim=self.condition_dim, like="the flow")
        condition = condition.astype(accumulate_in(condition))
        nets = [[unbound(net) for net in nets] for nets in self.nets]
        bijectors = self._bijectors(self._conditions(condition), nets)
        zeros = jnp.zeros((condition.shape[0], self.dim), condition.dtype)
        latents = distrax.Independent(distrax.Normal(zeros, jnp.ones_like(zeros)), 1)
        # distrax chains apply their last bijector first: x to latents is the last block's of … of the first's.
        return distrax.Transformed(latents, distrax.Inverse(distrax.Chain(bijectors[::-1])))

    def _check_inputs(self, name: str, vectors: Array, condition: Array) -> tuple[Array, Array]:
        checks.check_embeddings(name, vectors, dim=self.dim, like="the flow")
        checks.check_embeddings("condition", condition, dim=self.condition_dim, like="the flow")
        if vectors.shape[0] != condition.shape[0]:
            raise ValueError(
                f"condition must have as many rows as {name}, {vectors.shape[0]}, got {condition.shape[0]}"
            )
        dtype = accumulate_in(vectors, condition)
        return vectors.astype(dtype), condition.astype(dtype)

    def _conditions(self, condition: Array) -> list[Array | None]:
        """Return the part of the condition that each block's nets see."""
        if self.conditioning == "embedded":
            condition = self.embedding(condition)
        places = {"start": 0, "mid": self.num_blocks // 2, "end": self.num_blocks - 1}
        only = places.get(self.conditioning)
        return [condition if only in (None, block) else None for block in range(self.num_blocks)]

    def _halves(self) -> list[list["_Half"]]:
        """For each block, which dimensions move in turn."""
        first, second = _Half(True, round(self.dim / 2)), _Half(False, round(self.dim / 2))
        if self.coupling == "glow":
            return [[first, second]] * self.num_blocks
        return [[second if block % 2 else first] for block in range(self.num_blocks)]

    def _bijectors(self, conditions: list[Array | None], nets: Any) -> list[distrax.Bijector]:
        return [b for i in range(self.num_blocks) for b in self._block(i, conditions, nets)]

    def _block(
        self, index: int, conditions: list[Array | None], nets: Any, x: Array | None = None
    ) -> list[distrax.Bijector]:
        """One block's bijectors, from data to latents; ``x`` enters it, should the first batch set its scale."""
        bijectors: list[distrax.Bijector] = []
        if self.actnorm:
            scale, mean = self.norms[index](x)
            bijectors.append(distrax.Block(distrax.ScalarAffine(-mean * scale, scale), 1))
        bijectors += self._mix(index)
        for half, net in zip(self._halves()[index], nets[index], strict=True):
            conditioner = with_condition(net, conditions[index])
            bijectors.append(
                distrax.SplitCoupling(half.split, 1, conditioner, self._affine, swap=half.first)
            )
        return bijectors

    def _mix(self, index: int) -> list[distrax.Bijector]:
        if self.mixing == "permutation":
            return [Permute(np.random.RandomState(self.seed + index).permutation(self.dim))]
        order, _, signs = start_of_linear(self.dim, self.seed + index)
        return [Linear(self.triangles[index], signs), Permute(order)]

    def _affine(self, parameters: Array) -> distrax.Bijector:
        raw, shift = jnp.split(parameters, 2, axis=-1)
        return distrax.ScalarAffine(shift, log_scale=self.clamp * 0.636 * jnp.arctan(raw))


class _Half(NamedTuple):
    """Dimensions that one coupling moves: those before or after the split."""

    first: bool
    split: int

    @property
    def moved(self) -> slice:
        return slice(0, self.split) if self.first else slice(self.split, None)
