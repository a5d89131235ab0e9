"""The conditional flow: invertible, with the Jacobian's determinant, for every size, coupling, mixing and condition."""

import functools
import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import parameterized

pytest.importorskip("distrax", reason="flows are built on distrax (the flows extra)")

from jdml import flows
from jdml.flows.layers import Linear, Net

B, CONDITION = 6, 4


def built(dim: int, **settings: Any) -> tuple[flows.ConditionalFlow, Any, np.ndarray, np.ndarray]:
    """Return a flow with its parameters, a batch and conditions on the sphere."""
    flow = flows.ConditionalFlow(dim, CONDITION, **{"hidden": 16, "depth": 3, **settings})
    rng = np.random.default_rng(1)
    batch, condition = (
        rng.normal(size=(B, width)).astype(np.float32) for width in (dim, CONDITION)
    )
    condition /= np.linalg.norm(condition, axis=1, keepdims=True)
    return flow, flow.init(jax.random.key(3), batch, condition), batch, condition


@functools.partial(jax.jit, static_argnums=0)
def there_and_back(flow: flows.ConditionalFlow, params: Any, x: jax.Array, c: jax.Array) -> Any:
    """Return the reconstruction, the log-determinants of both directions, and each row's Jacobian."""

    def moved(by: jax.Array) -> Any:
        there = flow.apply(params, x + by, c)
        return there[0], there

    jacobians, (latents, log_det) = jax.jacfwd(moved, has_aux=True)(jnp.zeros(flow.dim))
    back, log_det_back = flow.apply(params, latents, c, method="inverse")
    return back, log_det_back, log_det, jacobians


KINDS = [
    {"coupling": coupling, "mixing": mixing, "actnorm": actnorm}
    for coupling, mixing, actnorm in itertools.product(
        ("glow", "realnvp"), ("permutation", "linear"), (False, True)
    )
]


# One case for each way to split the dimensions; in `make test` each option occurs twice.
SIZED = [
    pytest.param(7, kind, marks=[] if i in (0, 7) else [pytest.mark.slow])
    for i, kind in enumerate(KINDS)
] + [(2, KINDS[5]), (3, KINDS[3])]


class Variants(chex.TestCase):
    """Every preset with few blocks, forward and inverse: compiled or not, on NumPy arrays or on a device."""

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    @parameterized.named_parameters(*((name, name) for name in flows.PRESETS))
    def test_property(self, name: str) -> None:
        _, _, x, c = built(4)
        flow = flows.preset(name, 4, CONDITION, num_blocks=1, hidden=8, depth=2)
        params = jax.device_get(flow.init(jax.random.key(3), x, c))

        def energy(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            latents, log_det = flow.apply(params, x, c)
            back, log_det_back = flow.apply(params, latents, c, method="inverse")
            return jnp.sum(jnp.square(latents)), (back, log_det + log_det_back)

        step = jax.value_and_grad(energy, (0, 1), has_aux=True)
        (_, (back, zero)), gradients = self.variant(step)(params, x)
        np.testing.assert_allclose(back, x, atol=1e-5)
        np.testing.assert_allclose(zero, np.zeros(B), atol=1e-5)
        chex.assert_tree_all_finite(gradients)
        chex.assert_trees_all_equal_shapes_and_dtypes(gradients, (params, x))


@pytest.mark.parametrize(("dim", "kind"), SIZED)
def test_inverse_and_determinant(dim: int, kind: dict[str, Any]) -> None:
    flow, params, x, c = built(dim, num_blocks=2, **kind)

    back, log_det_back, log_det, jacobians = there_and_back(flow, params, x, c)
    np.testing.assert_allclose(back, x, atol=1e-5)
    np.testing.assert_allclose(log_det_back, -log_det, atol=1e-4)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobians)[1], atol=1e-4)


@pytest.mark.slow  # large programs
@pytest.mark.parametrize(
    ("dim", "size", "kind"), [(128, "paper", {"mixing": "linear"}), (512, "released", {})]
)
def test_round_trip_and_determinant_at_the_papers_sizes(
    dim: int, size: str, kind: dict[str, Any]
) -> None:
    flow = flows.preset(size, dim, dim, **kind)
    units = np.random.default_rng(0).normal(size=(2, 3, dim)).astype(np.float32)
    x, c = units / np.linalg.norm(units, axis=-1, keepdims=True)
    params = flow.init(jax.random.key(1), x, c)
    back, _, log_det, jacobians = there_and_back(flow, params, x, c)
    assert np.abs(back - x).max() <= 1e-5
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobians)[1], atol=2e-3)


@pytest.mark.parametrize(
    "conditioning",
    ["dense", "mid", "embedded"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("start", "end")],  # a program each
)
def test_map_depends_on_the_condition_for_every_conditioning(conditioning: str) -> None:
    flow, params, x, c = built(5, conditioning=conditioning)
    apply = jax.jit(flow.apply, static_argnames="method")
    (latents, _), (other, _) = apply(params, x, c), apply(params, x, -c)
    assert np.abs(latents - other).min() > 1e-6
    back, _ = apply(params, latents, c, method="inverse")
    np.testing.assert_allclose(back, x, atol=1e-5)
    widths = [
        net["Dense_0"]["kernel"].shape[0]
        for name, net in params["params"].items()
        if name.startswith("nets")
    ]
    with_condition = sum(width > 3 for width in widths)
    assert with_condition == (2 if conditioning in ("start", "mid", "end") else 10)


# Another program.
@pytest.mark.parametrize("mixing", ["permutation", pytest.param("linear", marks=pytest.mark.slow)])
def test_distribution_has_the_flows_density(mixing: str) -> None:
    flow, params, x, c = built(3, mixing=mixing)

    @jax.jit
    def both(x: jax.Array, c: jax.Array) -> Any:
        density = flow.apply(params, c, method="distribution")
        draws = density.sample(seed=jax.random.key(0), sample_shape=(5,))
        residuals, _ = flow.apply(params, draws[2], c)
        again, _ = flow.apply(params, residuals, c, method="inverse")
        of_draws = density.log_prob(draws), jax.vmap(density.log_prob)(draws)
        return density.log_prob(x), flow.apply(params, x, c), draws, again, of_draws

    log_prob, (latents, log_det), draws, again, (at_once, stacked) = both(x, c)
    normal = -0.5 * np.sum(np.square(latents), axis=1) - 1.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(log_prob, normal + log_det, rtol=1e-4)
    assert draws.shape == (5, B, 3)
    np.testing.assert_allclose(again, draws[2], atol=1e-4)
    np.testing.assert_allclose(at_once, stacked, rtol=1e-3, atol=1e-4)


def test_first_batch_initializes_actnorm() -> None:
    _, params, x, _ = built(4, actnorm=True, num_blocks=1, coupling="realnvp")
    norm = params["params"]["norms_0"]
    entered = (x - norm["mean"]) * jnp.exp(norm["log_scale"])
    np.testing.assert_allclose(entered.mean(0), np.zeros(4), atol=1e-5)
    np.testing.assert_allclose(entered.std(0), np.ones(4), atol=1e-4)


def test_actnorm_without_a_first_batch_is_the_identity() -> None:
    flow = flows.ConditionalFlow(4, CONDITION, num_blocks=1, hidden=8, depth=2, actnorm=True)
    params = flow.init(jax.random.key(0), jnp.zeros((0, 4)), jnp.zeros((0, CONDITION)))
    chex.assert_trees_all_equal(
        params["params"]["norms_0"], {"log_scale": jnp.zeros(4), "mean": jnp.zeros(4)}
    )


def test_log_scales_stay_within_the_clamp() -> None:
    flow, params, x, c = built(4, clamp=0.5, num_blocks=1)
    loud = jax.tree.map(lambda p: 1e3 * p, params)
    _, log_det = flow.apply(loud, x, c)
    assert jnp.abs(log_det).max() <= 4 * 0.5 * 0.636 * np.pi / 2 + 1e-5


def test_linear_map_equals_its_triangular_factors() -> None:
    with jax.enable_x64(True):
        linear = Linear(jnp.zeros((2, 2), jnp.float32), np.ones(2, np.float32))
        assert linear.forward(jnp.ones((1, 2), jnp.float32)).dtype == jnp.float32


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("settings", [{}, {"mixing": "linear"}, {"actnorm": True}])
def test_16_bit_parameters_and_inputs_are_computed_in_float32(dtype: Any, settings: Any) -> None:
    flow = flows.ConditionalFlow(8, 8, num_blocks=2, hidden=8, depth=2, **settings)
    x, c = jax.random.normal(jax.random.key(1), (2, 5, 8))
    params = flow.init(jax.random.key(0), x, c)
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), (params, x, c))
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), narrow)
    for value, expected in zip(flow.apply(*narrow), flow.apply(*wide), strict=True):
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)


def test_transformations() -> None:
    flow, params, x, c = built(4)

    def energy(params: Any, x: jax.Array) -> jax.Array:
        latents, log_det = flow.apply(params, x, c)
        return jnp.mean(0.5 * jnp.sum(latents**2, axis=1) - log_det)

    value, plain = jax.jit(jax.value_and_grad(energy))(params, x)
    rematerialized = jax.jit(jax.grad(jax.checkpoint(energy)))(params, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), plain, rematerialized)
    stacked = jax.jit(jax.vmap(energy, (None, 0)))(params, jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(stacked, [value, jax.jit(energy)(params, 2 * x)], rtol=1e-5)


@pytest.mark.slow  # loads PyTorch
def test_equals_freia_with_the_same_weights() -> None:
    """FrEIA's GLOWCouplingBlock after its fixed permutation, with its weights copied."""
    torch = pytest.importorskip("torch", reason="FrEIA (the parity extra) is a torch library")
    framework = pytest.importorskip("FrEIA.framework", reason="FrEIA is not installed")
    modules = pytest.importorskip("FrEIA.modules")
    dim, blocks, hidden = 7, 3, 12
    flow = flows.ConditionalFlow(dim, CONDITION, num_blocks=blocks, hidden=hidden, depth=3)
    rng = np.random.default_rng(0)
    x, c = (rng.normal(size=(B, width)).astype(np.float32) for width in (dim, CONDITION))
    params = flow.init(jax.random.key(0), jnp.asarray(x), jnp.asarray(c))["params"]
    names = iter([f"nets_{block}_{half}" for block in range(blocks) for half in (0, 1)])

    def subnet(width: int, out: int) -> Any:
        layers = [torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden)]
        return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(hidden, out))

    net = framework.SequenceINN(dim)
    for block in range(blocks):
        net.append(modules.PermuteRandom, seed=block)
        net.append(
            modules.GLOWCouplingBlock,
            cond=0,
            cond_shape=(CONDITION,),
            subnet_constructor=subnet,
            clamp=2.0,
        )
    for module in net.module_list[1::2]:
        for theirs in (module.subnet2, module.subnet1):  # theirs moves the first half by subnet2
            ours = params[next(names)]
            linears = [layer for layer in theirs if isinstance(layer, torch.nn.Linear)]
            for i, layer in enumerate(linears):
                layer.weight.data = torch.tensor(np.asarray(ours[f"Dense_{i}"]["kernel"]).T)
                layer.bias.data = torch.tensor(np.asarray(ours[f"Dense_{i}"]["bias"]))
    expected, determinant = net(torch.tensor(x), c=[torch.tensor(c)])
    latents, log_det = flow.apply({"params": params}, x, c)
    np.testing.assert_allclose(latents, expected.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(log_det, determinant.detach().numpy(), atol=1e-5)


def test_presets() -> None:
    assert flows.preset("released", 8, 8) == flows.ConditionalFlow(8, 8)
    assert flows.preset("paper", 8, 8, hidden=64).hidden == 64
    glow = flows.preset("glow", 8, 8)
    assert (glow.actnorm, glow.mixing, glow.coupling) == (True, "linear", "glow")
    with pytest.raises(ValueError, match=r"^name\b"):
        flows.preset("large", 8, 8)


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("dim", 1, ValueError),
        ("condition_dim", 0, ValueError),
        ("depth", 2.0, TypeError),
        ("coupling", "nice", ValueError),
        ("mixing", "none", ValueError),
        ("conditioning", "all", ValueError),
        ("clamp", 0.0, ValueError),
    ],
)
def test_wrong_settings_are_refused(setting: str, value: Any, error: type[Exception]) -> None:
    flow = flows.ConditionalFlow(**{"dim": 4, "condition_dim": 3, setting: value})
    with pytest.raises(error, match=rf"^{setting}\b"):
        flow.init(jax.random.key(0), jnp.ones((2, 4)), jnp.ones((2, 3)))


def test_net_has_relu_only_between_its_layers() -> None:
    x, net = jnp.array([[1.0, -2.0]]), Net(hidden=3, depth=2, out=2)
    params = net.init(jax.random.key(0), x)
    first, second = params["params"].values()
    hidden = np.maximum(x @ first["kernel"] + first["bias"], 0)
    np.testing.assert_allclose(
        net.apply(params, x), hidden @ second["kernel"] + second["bias"], rtol=1e-5
    )


def test_arrays_of_wrong_shape_or_type_are_refused() -> None:
    flow, params, x, c = built(4)
    rows = [
        ((x, c[:, :3]), None, ValueError, "condition"),
        ((x[:, :3], c), None, ValueError, "x"),
        ((x, c[:5]), None, ValueError, "condition"),
        ((c[:, :2],), "distribution", ValueError, "condition"),
        ((c.astype(int),), "distribution", TypeError, "condition"),
        ((x, c.astype(int)), None, TypeError, "condition"),
        ((x.astype(int), c), "inverse", TypeError, "latents"),
    ]
    for arrays, method, error, name in rows:
        with pytest.raises(error, match=rf"^{name}\b"):
            flow.apply(params, *arrays, method=method)


MEANS = np.array([[[-1.5, 0.0], [1.5, 0.5]], [[0.0, -1.5], [0.5, 1.5]]])  # class, mode
SPREAD = 0.35


def mixture(key: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Draw points in the plane, two modes per class, and their classes."""
    keys = jax.random.split(key, 3)
    classes, modes = (jax.random.randint(k, (size,), 0, 2) for k in keys[:2])
    noise = SPREAD * jax.random.normal(keys[2], (size, 2))
    return jnp.asarray(MEANS, jnp.float32)[classes, modes] + noise, classes


def gaussian_nll(seen: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the negative log-likelihood of points under one Gaussian that is fitted to others."""
    off, covariance = points - seen.mean(0), np.cov(seen.T)
    squares = np.einsum("ni,ij,nj->n", off, np.linalg.inv(covariance), off)
    return squares / 2 + np.linalg.slogdet(covariance)[1] / 2 + np.log(2 * np.pi)


@pytest.mark.slow  # long runs
@pytest.mark.parametrize(("coupling", "mixing"), [("glow", "linear"), ("realnvp", "permutation")])
def test_learns_a_density_that_integrates_to_one(coupling: Any, mixing: Any) -> None:
    sizes = {"num_blocks": {"glow": 4, "realnvp": 8}[coupling], "hidden": 32, "depth": 2}
    flow = flows.ConditionalFlow(2, 2, **sizes, coupling=coupling, mixing=mixing)
    optimizer = optax.adam(3e-3)

    def nll(params: Any, points: jax.Array, classes: jax.Array) -> jax.Array:
        density = flow.apply(params, jnp.eye(2)[classes], method="distribution")
        return -density.log_prob(points).mean()

    @jax.jit
    def trained(params: Any, keys: jax.Array) -> Any:
        def step(carried: Any, key: jax.Array) -> tuple[Any, None]:
            params, state = carried
            updates, state = optimizer.update(jax.grad(nll)(params, *mixture(key, 256)), state)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), keys)[0][0]

    params = flow.init(jax.random.key(0), jnp.zeros((1, 2)), jnp.zeros((1, 2)))
    params = trained(params, jax.random.split(jax.random.key(1), 400))
    side = np.linspace(-5, 5, 201, dtype=np.float32)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)

    @jax.jit
    def density(at: jax.Array) -> jax.Array:
        return jnp.exp(flow.apply(params, at, method="distribution").log_prob(grid))

    for condition in np.eye(2, dtype=np.float32):
        total = density(np.broadcast_to(condition, grid.shape)).sum()
        np.testing.assert_allclose(total * (side[1] - side[0]) ** 2, 1.0, atol=0.02)

    (seen, owners), (points, classes) = (mixture(jax.random.key(i), 4096) for i in (2, 3))
    gaussian = np.mean(
        np.concatenate([gaussian_nll(seen[owners == c], points[classes == c]) for c in (0, 1)])
    )
    squares = np.square(np.asarray(points)[:, None] - MEANS[classes]).sum(-1)
    modes = np.exp(-squares / (2 * SPREAD**2)).mean(1) / (2 * np.pi * SPREAD**2)
    truth, learned = -np.log(modes).mean(), jax.jit(nll)(params, points, classes)
    assert truth - 0.02 < learned < truth + 0.4
    assert learned < gaussian - 0.3
