"""NIR and CCP on the command line: their own numbers, and what they make of a loss."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jdml.cli.messages import nearest
from jdml.cli.names import build_miner, parse_settings

if TYPE_CHECKING:
    from jdml.cli.job import Job

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "nir": {
        "weight": 0.01,
        "shape": "exp",
        "temperature": 1.0,
        "per_dimension": False,
        "of_mean": False,
        "stop_proxy_gradient": False,
        "wrong_class_weight": 0.0,
        "self_regularization": "none",
        "warmup": 50,
        "flow_lr": 5e-4,
        "skip_nonfinite": 10,
    },
    "ccp": {
        "in_batch_weight": 0.0,
        "pool_size": 12,
        "strength": 2e-4,
        "patience": 3,
        "run_patience": 60,
        "restore": True,
        "anchor_first": False,
        "first": "random",
    },
}
"""The methods' own numbers and their defaults."""
OF_TRAINING = ("warmup", "flow_lr", "skip_nonfinite")
"""Those of NIR that say how it is trained, not what the objective is."""


def method_settings(method: str, typed: Sequence[str]) -> dict[str, Any]:
    """Read ``--method-setting``.

    Raises:
        ValueError: a setting that the method does not have.

    Example:
        >>> method_settings("ccp", ["pool_size=16"])["pool_size"]
        16
    """
    known = SETTINGS[method]
    given = parse_settings(typed, "--method-setting", words=True)
    for name in given:
        if name not in known:
            raise ValueError(
                f"--method-setting: {method} has no setting {name!r}; it has {', '.join(sorted(known))}"
                f"{nearest(name, known)}"
            )
    return {**known, **given}


def build_method(job: "Job", loss_fn: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """Make the objective of NIR or CCP from a loss."""
    from jdml import objectives

    options, classes = job.options, job.train.num_classes
    each = options.proxies_per_class or 1
    if options.method == "ccp":
        return objectives.as_proxy_objective(
            loss_fn,
            classes,
            options.dim,
            each,
            in_batch_weight=job.settings["in_batch_weight"],
            mine=build_miner(options.miner, options.dim),
            **settings,
        )
    from jdml import flows

    base = objectives.proxy(loss_fn, classes, options.dim, each, **settings)
    flow = flows.preset("released", options.dim, options.dim)
    own = {name: v for name, v in job.settings.items() if name not in OF_TRAINING}
    return objectives.with_nir(base, flow, **own)


def build_hook(job: "Job") -> Any:
    """Make what chooses CCP's proxies anew."""
    from jdml.ccp import AlternatingProjections
    from jdml.training import AlternatingProblems

    settings = job.settings
    return AlternatingProblems(
        model=job.model,
        train=job.train,
        pool_size=settings["pool_size"],
        monitor=str(job.monitor),
        machine=AlternatingProjections(
            patience=settings["patience"], run_patience=settings["run_patience"]
        ),
        restore=settings["restore"],
        anchor_first=settings["anchor_first"],
        first=settings["first"],
        normalize=job.normalize,
        seed=job.options.seed,
        preprocess=job.preprocess,
    )
