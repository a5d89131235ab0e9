"""The miners: a function that makes each, and the rule by which it keeps pairs of a row ``[B, R]`` of distances."""

import jax
import jax.numpy as jnp
from jax import Array

from jdml.mining.pairs import Chain, GuidedMiner, Miner, Pairs, Rule, fold_each
from jdml.ops import checks, distances, sphere
from jdml.ops.numerics import accumulate_in

__all__ = [
    "chain",
    "check_miner",
    "distance_weighted_negative",
    "easy_positive",
    "hard_negative",
    "hard_positive",
    "multi_similarity_pairs",
    "random_negative",
    "random_positive",
    "semi_hard_negative",
    "soft_hard_pairs",
    "trusted_negative",
]


def check_miner(mine: object) -> None:
    """Refuse what is no miner, such as a function that makes one: ``easy_positive`` for ``easy_positive()``.

    Args:
        mine: what was passed; None is none.

    Raises:
        TypeError: naming it.

    Example:
        >>> check_miner(easy_positive)
        Traceback (most recent call last):
        TypeError: mine must be a miner, got the function easy_positive, which makes one: write mine=easy_positive()
    """
    if mine is not None and not callable(mine):
        known = ", ".join(f"{name}()" for name in __all__ if name not in ("chain", "check_miner"))
        raise TypeError(f"mine must be a miner of jdml.mining ({known}) or your own, got {mine!r}")
    name = getattr(mine, "__name__", "")
    if name and getattr(mine, "__module__", "") == __name__ and globals().get(name) is mine:
        raise TypeError(
            f"mine must be a miner, got the function {name}, which makes one: write mine={name}()"
        )


def easy_positive() -> Miner:
    """Keep, of every anchor's positives, the nearest one: easy positive sampling (EPS).

    ``p_a = argmin_{t ∈ C_a} ‖f(t) − f(a)‖`` over the anchor's class without the anchor itself. Pulling an anchor to its
    nearest positive only lets a class keep several modes, where pulling it to all of them collapses the class.

    Returns:
        A deterministic miner; ties go to the lowest index, negatives are kept as they are.

    Reference:
        Levi, Xiao, Wang & Darrell, *Rethinking Preventing Class-Collapsing in Metric Learning with Margin-based
        Losses*, §4.3.

    Example:
        >>> import jax.numpy as jnp
        >>> distances = jnp.array([[0.0, 3.0, 1.0, 2.0]])
        >>> pairs = Pairs(jnp.array([[False, True, False, True]]), jnp.array([[False, False, True, False]]))
        >>> easy_positive()(None, distances, pairs).positive.astype(int)
        Array([[0, 0, 0, 1]], dtype=int32)
    """
    return Rule(_easy_positive)


def random_positive() -> Miner:
    """Keep, of every anchor's positives, one, drawn uniformly.

    Returns:
        A miner that needs ``key``.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> pairs = jdml.mining.all_pairs(jnp.array([0, 0, 0, 1]))
        >>> random_positive()(jax.random.key(0), jnp.zeros((4, 4)), pairs).positive.sum(1)
        Array([1, 1, 1, 0], dtype=int32)
    """
    return Rule(_random_positive)


def hard_positive() -> Miner:
    """Keep, of every anchor's positives, the farthest one.

    Returns:
        A deterministic miner; ties go to the lowest index.

    Example:
        >>> import jax.numpy as jnp
        >>> pairs = Pairs(jnp.array([[True, True]]), jnp.array([[False, False]]))
        >>> hard_positive()(None, jnp.array([[1.0, 2.0]]), pairs).positive.astype(int)
        Array([[0, 1]], dtype=int32)
    """
    return Rule(_hard_positive)


def random_negative() -> Miner:
    """Keep, of every anchor's negatives, one, drawn uniformly.

    Returns:
        A miner that needs ``key``.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> pairs = jdml.mining.all_pairs(jnp.array([0, 0, 1, 1]))
        >>> random_negative()(jax.random.key(0), jnp.zeros((4, 4)), pairs).negative.sum(1)
        Array([1, 1, 1, 1], dtype=int32)
    """
    return Rule(_random_negative)


def hard_negative() -> Miner:
    """Keep, of every anchor's negatives, the nearest one.

    Returns:
        A deterministic miner; ties go to the lowest index.

    Example:
        >>> import jax.numpy as jnp
        >>> pairs = Pairs(jnp.array([[False, False]]), jnp.array([[True, True]]))
        >>> hard_negative()(None, jnp.array([[1.0, 2.0]]), pairs).negative.astype(int)
        Array([[1, 0]], dtype=int32)
    """
    return Rule(_hard_negative)


def semi_hard_negative(margin: float | Array = 0.2) -> Miner:
    """Keep, of every anchor's negatives, one that is farther than its positive, but within the margin.

    Drawn uniformly from the negatives with ``d_ap < d_an < d_ap + margin``; where there is none, uniformly from all
    negatives. ``d_ap`` is the distance to the nearest positive that is left, so put a positive miner before it:
    ``chain(easy_positive(), semi_hard_negative())``. An anchor without a positive keeps no negative.

    Args:
        margin: width of the band, a Euclidean distance.

    Returns:
        A miner that needs ``key``.

    Raises:
        ValueError: the margin is negative.

    Reference:
        Schroff, Kalenichenko & Philbin, *FaceNet*, §3.2; the uniform draw and the fallback are those of the framework
        that EPS was built on.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> pairs = Pairs(jnp.array([[True, False, False, False]]), jnp.array([[False, True, True, True]]))
        >>> distances = jnp.array([[1.0, 0.5, 1.1, 2.0]])
        >>> semi_hard_negative(margin=0.2)(jax.random.key(0), distances, pairs).negative.astype(int)
        Array([[0, 0, 1, 0]], dtype=int32)
    """
    checks.non_negative("margin", margin)
    return Rule(_semi_hard_negative, {"margin": _number(margin)})


def soft_hard_pairs() -> Miner:
    """Keep, of every anchor, a positive farther than its nearest negative, and a negative nearer than a positive.

    One positive, drawn uniformly from those farther than the nearest negative, and one negative, from those nearer than
    the farthest positive; where there is none, uniformly from all positives, or all negatives. What is hard is judged
    by all pairs that are left when it is this miner's turn.

    Returns:
        A miner that needs ``key``.

    Reference:
        Roth et al., *Revisiting Training Strategies and Generalization Performance in Deep Metric Learning*: the
        rule of its program that mines positives, too, as EPS says of its baselines with semi-hard sampling.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> pairs = Pairs(jnp.array([[True, True, False, False]]), jnp.array([[False, False, True, True]]))
        >>> kept = soft_hard_pairs()(jax.random.key(0), jnp.array([[0.5, 1.1, 1.0, 2.0]]), pairs)
        >>> kept.positive.astype(int), kept.negative.astype(int)
        (Array([[0, 1, 0, 0]], dtype=int32), Array([[0, 0, 1, 0]], dtype=int32))
    """
    return Rule(_soft_hard_pairs)


def distance_weighted_negative(
    *, dim: float, cutoff: float | Array = 0.5, max_distance: float | Array = 1.4
) -> Miner:
    """Keep, of every anchor's negatives, one, drawn so that all distances on the sphere are equally likely.

    The probability is proportional to ``1 / q(d)``, ``q(d) = d^(D−2) (1 − d²/4)^((D−3)/2)``, the density of distances
    between random points of the unit sphere. Distances below ``cutoff`` count as ``cutoff``; negatives beyond
    ``max_distance`` are left out where any other is left.

    Args:
        dim: D, the dimension of the (unit-norm) embeddings.
        cutoff: distances below it count as it.
        max_distance: negatives farther than this are left out, unless there are no others.

    Returns:
        A miner that needs ``key``.

    Raises:
        ValueError: dim, cutoff or max_distance is not positive.

    Reference:
        Wu, Manmatha, Smola & Krähenbühl, *Sampling Matters in Deep Embedding Learning*, §4.1.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> pairs = Pairs(jnp.zeros((1, 3), bool), jnp.array([[True, True, False]]))
        >>> mine = distance_weighted_negative(dim=128)
        >>> mine(jax.random.key(0), jnp.array([[0.6, 1.5, 0.1]]), pairs).negative.astype(int)
        Array([[1, 0, 0]], dtype=int32)
    """
    checks.positive("dim", dim)
    checks.positive("cutoff", cutoff)
    checks.positive("max_distance", max_distance)
    settings = {"dim": dim, "cutoff": cutoff, "max_distance": max_distance}
    settings = {name: _number(value) for name, value in settings.items()}
    return Rule(_distance_weighted_negative, settings)


def multi_similarity_pairs(epsilon: float | Array = 0.1, *, mine_positives: bool = True) -> Miner:
    """Keep the pairs that are hard for their anchor, as the multi-similarity loss mines them.

    Negatives more similar than the hardest positive and positives less similar than the hardest negative, up to ε:
    negatives with ``s_an + ε > min_p s_ap`` and positives with ``s_ap − ε < max_n s_an``, with ``s = 1 − d²/2``, the
    cosine on the sphere. The minimum runs over the positives that are left when it is this miner's turn.

    Args:
        epsilon: slack, in cosine similarity.
        mine_positives: False keeps all positives.

    Returns:
        A deterministic miner.

    Raises:
        ValueError: epsilon is not finite.

    Paper settings:
        ε = .1. EPS + MS keeps the easy positive and, read literally, the negatives of this miner over the whole batch:
        ``chain(multi_similarity_pairs(mine_positives=False), easy_positive())``. In the other order negatives are
        compared with the easy positive, and far fewer are left: on Omniglot's letters that gave R@1 49.7 ± 0.4 where
        this order gives 60.2 ± 0.6 (``experiments/eps_omniglot``).

    Reference:
        Wang, Han, Huang, Dong & Scott, *Multi-Similarity Loss with General Pair Weighting*, §4.1.

    Example:
        >>> import jax.numpy as jnp
        >>> pairs = Pairs(jnp.array([[True, False, False]]), jnp.array([[False, True, True]]))
        >>> kept = multi_similarity_pairs()(None, jnp.array([[0.5, 0.6, 1.4]]), pairs)
        >>> kept.negative.astype(int)
        Array([[0, 1, 0]], dtype=int32)
    """
    checks.finite("epsilon", epsilon)
    rule = _multi_similarity_pairs if mine_positives else _multi_similarity_negatives
    return Rule(rule, {"epsilon": _number(epsilon)})


def trusted_negative(
    margin: float | Array = 0.0,
    *,
    embeddings: Array | None = None,
    references: Array | None = None,
) -> Miner:
    """Leave out negatives that are more similar to their anchor than its positive: they may be none.

    Kept are negatives with ``s_an ≤ s_ap − margin``, where s is the cosine and p the nearest positive that is left. In
    a batch of pairs without classes, such as questions and answers, a passage that fits better than the answer is more
    likely an answer that nobody has marked. An anchor without a positive keeps all negatives.

    Args:
        margin: a cosine; the greater, the fewer are trusted.
        embeddings: ``[B, D]``, by which similarity is told: a teacher's. Default: the model's own.
        references: ``[R, D]``, likewise of the references. Default: ``embeddings``.

    Returns:
        A deterministic miner. With ``embeddings`` it looks at a batch as a whole, whatever ``anchor_block`` says. What
        it leaves is counted by :func:`jdml.losses.mining_activity`.

    Raises:
        ValueError: the margin is not finite, shapes that do not fit, ``references`` without ``embeddings``.

    Reference:
        Solatorio, *GISTEmbed* (a teacher's); Moreira et al., *NV-Retriever* (margin below the positive).

    Example:
        >>> import jax.numpy as jnp
        >>> pairs = Pairs(jnp.array([[True, False, False]]), jnp.array([[False, True, True]]))
        >>> trusted_negative()(None, jnp.array([[0.5, 0.4, 0.6]]), pairs).negative.astype(int)
        Array([[0, 0, 1]], dtype=int32)
    """
    checks.finite("margin", margin)
    rule = Rule(_trusted_negative, {"margin": _number(margin)})
    if embeddings is None:
        if references is not None:
            raise ValueError("references need embeddings, which is missing")
        return rule
    checks.check_embeddings("embeddings", embeddings)
    if references is not None:
        checks.check_embeddings(
            "references", references, dim=embeddings.shape[1], like="embeddings"
        )
        checks.require_finite("references", references)
    checks.require_finite("embeddings", embeddings)
    several = embeddings, embeddings if references is None else references
    dtype = accumulate_in(*several)
    x, y = (sphere(jnp.asarray(checks.as_array(some)).astype(dtype)) for some in several)
    return GuidedMiner(rule, distances(x, x if references is None else y))


def chain(*miners: Miner) -> Miner:
    """Run miners in turn, each on the pairs that the one before it kept.

    Args:
        *miners: miners; none keeps all pairs.

    Returns:
        A miner that needs ``key`` if one of them does; each gets a key of its own.

    Raises:
        TypeError: something that cannot be called, or that makes a miner.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> pairs = jdml.mining.all_pairs(jnp.array([0, 0, 1, 1, 1]))
        >>> kept = chain(easy_positive(), hard_negative())(None, jnp.ones((5, 5)), pairs)
        >>> kept.positive.sum(1), kept.negative.sum(1)
        (Array([1, 1, 1, 1, 1], dtype=int32), Array([1, 1, 1, 1, 1], dtype=int32))
    """
    for miner in miners:
        if not callable(miner):
            raise TypeError(
                f"chain takes miners, functions (key, distances, pairs) -> Pairs; got {miner!r}"
            )
        check_miner(miner)
    return Chain(miners)


def _number(value: float | Array) -> float | Array:
    """A Python number as a float, which is traced; arrays as they are."""
    return float(value) if isinstance(value, int | float) else value


def _easy_positive(key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
    return pairs._replace(positive=_first(distances, pairs.positive))


def _random_positive(key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
    return pairs._replace(positive=_draw(key, "random_positive()", pairs.positive))


def _hard_positive(key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
    return pairs._replace(positive=_first(-distances, pairs.positive))


def _random_negative(key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
    return pairs._replace(negative=_draw(key, "random_negative()", pairs.negative))


def _hard_negative(key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
    return pairs._replace(negative=_first(distances, pairs.negative))


def _semi_hard_negative(
    key: Array | None, distances: Array, pairs: Pairs, *, margin: Array
) -> Pairs:
    pull = _smallest(distances, pairs.positive)
    candidates = pairs.negative & (pull != jnp.inf)
    band = candidates & (distances > pull) & (distances < pull + margin)
    candidates = jnp.where(band.any(-1, keepdims=True), band, candidates)
    return pairs._replace(negative=_draw(key, "semi_hard_negative()", candidates))


def _soft_hard_pairs(key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
    key = checks.check_key("key", key, needed_by="soft_hard_pairs()")
    farther = pairs.positive & (distances > _smallest(distances, pairs.negative))
    nearer = pairs.negative & (distances < -_smallest(-distances, pairs.positive))
    chosen = []
    for turn, (hard, all_of_them) in enumerate(
        ((farther, pairs.positive), (nearer, pairs.negative))
    ):
        candidates = jnp.where(hard.any(-1, keepdims=True), hard, all_of_them)
        chosen.append(_draw(fold_each(key, turn), "soft_hard_pairs()", candidates))
    return Pairs(*chosen)


def _distance_weighted_negative(
    key: Array | None,
    distances: Array,
    pairs: Pairs,
    *,
    dim: Array,
    cutoff: Array,
    max_distance: Array,
) -> Pairs:
    near = pairs.negative & (distances <= max_distance)
    candidates = jnp.where(near.any(-1, keepdims=True), near, pairs.negative)
    clipped = jnp.maximum(distances, cutoff)
    cap = jnp.maximum(1.0 - jnp.square(clipped) / 4.0, 1e-6)
    log_weights = (2.0 - dim) * jnp.log(clipped) + (3.0 - dim) / 2.0 * jnp.log(cap)
    return pairs._replace(
        negative=_draw(key, "distance_weighted_negative()", candidates, log_weights)
    )


def _multi_similarity_pairs(
    key: Array | None, distances: Array, pairs: Pairs, *, epsilon: Array
) -> Pairs:
    squares = jnp.square(distances)
    hard = ~(squares + 2.0 * epsilon <= _smallest(squares, pairs.negative))
    return Pairs(
        positive=pairs.positive & hard,
        negative=_multi_similarity_negatives(key, distances, pairs, epsilon=epsilon).negative,
    )


def _multi_similarity_negatives(
    key: Array | None, distances: Array, pairs: Pairs, *, epsilon: Array
) -> Pairs:
    squares = jnp.square(distances)
    hard = ~(squares - 2.0 * epsilon >= -_smallest(-squares, pairs.positive))
    return pairs._replace(negative=pairs.negative & hard)


def _trusted_negative(key: Array | None, distances: Array, pairs: Pairs, *, margin: Array) -> Pairs:
    squares = jnp.square(distances)
    nearest = _smallest(squares, pairs.positive)
    trusted = ~(squares < nearest + 2.0 * margin) | (nearest == jnp.inf)
    return pairs._replace(negative=pairs.negative & trusted)


def _smallest(values: Array, where: Array) -> Array:
    """The smallest kept value of each row ``[B, 1]``, ``inf`` where there is none."""
    return jnp.min(jnp.where(where, values, jnp.inf), axis=-1, keepdims=True, initial=jnp.inf)


def _first(values: Array, where: Array) -> Array:
    """Mask of the smallest kept value of each row; ties go to the lowest index."""
    if values.shape[-1] == 0:
        return where
    index = jnp.argmin(jnp.where(where, values, jnp.inf), axis=-1)
    return where & (jnp.arange(values.shape[-1])[None, :] == index[:, None])


def _draw(key: Array | None, who: str, where: Array, log_weights: Array | float = 0.0) -> Array:
    """Mask of one entry of each row, drawn from the kept ones with the given log-weights."""
    key = checks.check_key("key", key, needed_by=who)
    noise = jax.vmap(lambda one: jax.random.gumbel(one, where.shape[1:]))(key)
    return _first(-(noise + log_weights), where)
