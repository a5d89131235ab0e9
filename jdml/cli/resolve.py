"""What the options of ``jdml train`` are when nothing was typed; and which of those that were typed go together."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jdml import data
from jdml.cli.names import (
    FIELDS,
    FOUND,
    FOUND_PROXIES,
    PAIR_LOSSES,
    PRETRAINED,
    PROXY_LOSSES,
    parse_batch,
)
from jdml.data.loading import recognize

if TYPE_CHECKING:
    from jdml.cli.train import Train

LOSSES: dict[str, Any] = {"plain": "triplet", "nir": "proxy_anchor", "ccp": "contrastive"}
SMALL_IMAGES = 64
"""Up to this size images are what the network `eps` is for."""
COPIES = 4
"""Of a batch of images, as floating-point numbers and what the first layer makes of them."""


def resolve(options: "Train") -> "Train":
    """Return the options with all defaults that depend on others, after checking them.

    Args:
        options: as typed.

    Returns:
        The options; what nothing asks for stays None.

    Raises:
        ValueError: options that do not go together, or numbers out of range, naming them as typed.
    """
    name: Any = options.data or (
        "digits" if options.data_dir is None else recognize(options.data_dir)
    )
    files = name in data.IMAGE_FILES
    method, typed = options.method, options
    loss = options.loss or LOSSES[method]
    options = replace(options, data=name, loss=loss)
    _check_data(options, files)
    _check_objective(options)
    _check_numbers(options)
    _check_training(options)
    size = _size(options) if files else options.image_size
    model = _network(options, files, size)
    options = replace(
        options,
        model=model,
        loss_setting=_settled(options.loss_setting, str(loss)),
        image_size=size,
        normalize=options.normalize or ("ball" if method == "ccp" else "sphere"),
        augmentation=(options.augmentation or "conventional") if files else None,
        on_bad_image=(options.on_bad_image or "stop") if files else None,
        evaluate_every=options.evaluate_every or 100,
        log_every=options.log_every or 50,
    )
    if loss in PROXY_LOSSES or method == "ccp":
        each = options.proxies_per_class
        if each is None:
            each = 8 if method == "ccp" else FOUND_PROXIES.get(str(loss), 1)
        factor = options.proxies_lr_factor or 100.0
        start = options.proxies_start or ("samples" if loss in FOUND and each else None)
        options = replace(
            options, proxies_per_class=each, proxies_lr_factor=factor, proxies_start=start
        )
    _check_memory(options, typed)
    return options


def _settled(typed: tuple[str, ...], loss: str) -> tuple[str, ...]:
    """The loss's settings: those that were typed, and those found to be better than its paper's."""
    names = {setting.partition("=")[0] for setting in typed}
    found = [s for s in FOUND.get(loss, ()) if s.partition("=")[0] not in names]
    return (*found, *typed)


def _check_data(options: "Train", files: bool) -> None:
    name = options.data
    if name == "digits" and options.data_dir is not None:
        raise ValueError("--data-dir is not for digits, which need no files: write --data folder")
    for option in (
        "augmentation",
        "workers",
        "on_bad_image",
        "split",
        "test_share",
        "classes_file",
    ):
        if not files and getattr(options, option) is not None:
            raise ValueError(f"{_flag(option)} is for image files; {name} lies in memory")
    if files and options.train_classes:
        raise ValueError(
            "--train-classes is for digits, mnist and omniglot: of image files --classes-file names those that train"
        )
    if options.split is not None and options.classes_file is not None:
        raise ValueError(
            "--split and --classes-file both say which classes train: give one of them"
        )
    if options.test_share is not None and options.split not in ("classes", "images"):
        raise ValueError("--test-share needs --split classes or --split images")
    if options.test_share is not None and not 0 < options.test_share < 1:
        raise ValueError(f"--test-share must be between 0 and 1, got {options.test_share}")
    if options.image_size is not None and name in ("digits", "mnist"):
        raise ValueError(f"--image-size is not for {name}, whose images are small")


def _check_objective(options: "Train") -> None:
    loss, method = options.loss, options.method
    proxies = loss in PROXY_LOSSES
    if proxies and options.miner != "none":
        raise ValueError(f"--miner is for pair losses; {loss} is a proxy loss")
    if proxies and options.memory:
        raise ValueError(f"--memory is for pair losses; {loss} is a proxy loss")
    if options.sampled_classes is not None and not proxies:
        raise ValueError(f"--sampled-classes is for proxy losses; {loss} is a pair loss")
    if options.sampled_classes is not None and options.proxies_per_class == 0:
        raise ValueError("--sampled-classes needs proxies; --proxies-per-class is 0")
    if method == "nir" and not proxies:
        raise ValueError(
            f"--method nir is for proxy losses, such as proxy_anchor; {loss} is a pair loss"
        )
    if method == "ccp" and loss not in PAIR_LOSSES:
        raise ValueError(
            f"--method ccp is for pair losses, such as contrastive; {loss} is a proxy loss"
        )
    if method == "ccp" and options.memory:
        raise ValueError("--memory is not for --method ccp, whose proxies are the references")
    if options.learn_beta is not None and (loss != "margin" or method != "plain"):
        raise ValueError(
            f"--learn-beta is for --loss margin, with --method plain; got {loss}, {method}"
        )
    if options.beta_lr_factor is not None and options.learn_beta is None:
        raise ValueError("--beta-lr-factor needs --learn-beta")
    if method == "plain" and options.method_setting:
        raise ValueError("--method-setting needs --method nir or --method ccp")
    for option in ("proxies_per_class", "proxies_lr_factor", "proxies_start"):
        if getattr(options, option) is not None and not proxies and method != "ccp":
            raise ValueError(f"{_flag(option)} is for proxy losses; {loss} is a pair loss")
    if options.proxies_start == "samples" and (method == "ccp" or options.proxies_per_class == 0):
        raise ValueError(
            "--proxies-start samples needs proxies that are learned: not --method ccp, nor --proxies-per-class 0"
        )


def _check_numbers(options: "Train") -> None:
    for name in ("validation", "label_noise"):
        if not 0 <= getattr(options, name) < 1:
            raise ValueError(
                f"{_flag(name)} must be from 0 to below 1, got {getattr(options, name)}"
            )
    for name in ("lr", "proxies_lr_factor", "beta_lr_factor", "steps", "dim", "evaluate_every", "checkpoint_every",
                 "log_every", "sampled_classes", "workers", "patience"):  # fmt: skip
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ValueError(f"{_flag(name)} must be positive, got {value}")
    each, alone = options.proxies_per_class, options.loss in FIELDS and options.method == "plain"
    if each is not None and each < (0 if alone else 1):
        raise ValueError(
            f"--proxies-per-class must be positive (0 for {' and '.join(FIELDS)} alone), got {each}"
        )
    for name in ("weight_decay", "warmup", "memory", "seed"):
        if getattr(options, name) < 0:
            raise ValueError(f"{_flag(name)} must not be negative, got {getattr(options, name)}")
    if options.image_size is not None and options.image_size < 1:
        raise ValueError(f"--image-size must be at least 1, got {options.image_size}")
    if options.warmup >= options.steps and options.warmup:
        raise ValueError(f"--warmup must be below --steps, {options.steps}, got {options.warmup}")


def _check_training(options: "Train") -> None:
    held_out = options.validation > 0 or options.data == "folder"  # whose val/ is looked for later
    if options.patience is not None and not held_out:
        raise ValueError("--patience needs --validation, a held-out share of the training rows")
    if options.monitor is not None and options.patience is None and options.method != "ccp":
        raise ValueError("--monitor needs --patience")
    if options.evaluate_every is not None and not held_out:
        raise ValueError(
            "--evaluate-every needs --validation, a held-out share of the training rows"
        )
    if options.method == "ccp" and not held_out:
        raise ValueError(
            "--method ccp needs --validation, held-out rows that tell when a problem ends: --validation 0.2"
        )
    for name in ("checkpoint_every", "log_every", "tensorboard"):
        if getattr(options, name) and options.out is None:
            raise ValueError(f"{_flag(name)} needs --out, a folder to write into")
    if options.out is not None:
        check_out(options.out)
    if options.input_stats is not None and options.weights is None:
        raise ValueError("--input-stats needs --weights, whose images are normalized")
    if options.weights is not None:
        if options.model is not None and options.model not in PRETRAINED:
            raise ValueError(
                f"--weights are those of {', '.join(PRETRAINED[:-1])} or {PRETRAINED[-1]}, got --model {options.model}"
            )
        if not options.weights.is_file():
            raise ValueError(f"--weights must be a file, got {options.weights}")
    if options.classes_file is not None and not options.classes_file.is_file():
        raise ValueError(f"--classes-file must be a file, got {options.classes_file}")


def check_out(out: Path, option: str = "--out") -> None:
    """Refuse a folder that cannot be one, before hours of work.

    Raises:
        ValueError: a path that is a file, or lies in one, or that may not be written.
    """
    place = out.expanduser().absolute()
    if place.exists() and not place.is_dir():
        raise ValueError(f"{option} must be a folder, {out} is a file")
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise ValueError(f"{option} must be a folder, {place} in it is a file")
    if not os.access(place, os.W_OK):
        raise ValueError(
            f"{option} must be a folder that may be written: no permission for {place}"
        )


def _size(options: "Train") -> int:
    """Height and width of image files' crops."""
    if options.image_size is not None:
        return options.image_size
    return data.mlrc().size if options.augmentation == "mlrc" else data.conventional().size


def _network(options: "Train", files: bool, size: int | None) -> Any:
    """The network's name."""
    if options.model is None:
        if options.weights is not None:
            from jdml.models.tensors import read_metadata
            from jdml.models.weights import ARCHITECTURE

            found = read_metadata(options.weights).get(ARCHITECTURE)
            if found is None:
                raise ValueError(
                    f"--weights {options.weights} does not name its network: convert it first (jdml weights convert)"
                )
            return found
        return "small" if files else "eps"
    if options.model == "eps" and files and size is not None and size > SMALL_IMAGES:
        millions = (size // 2) ** 2 * 64 * 128 / 1e6
        raise ValueError(
            f"--model eps is for small pictures: at {size} pixels its dense layer has {millions:,.0f} million "
            "parameters; write --model small or resnet18"
        )
    return options.model


def _check_memory(options: "Train", typed: "Train") -> None:
    """Refuse what no memory can hold."""
    there = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    )
    classes, samples = parse_batch(options.batch)
    rows = classes * (samples or 1)
    needed = {
        "--memory": 4 * options.memory * options.dim,
        "--image-size": 4 * COPIES * rows * 3 * (options.image_size or 0) ** 2,
    }
    for flag, size in needed.items():
        if there and size > there:
            value = (
                options.memory
                if flag == "--memory"
                else f"{options.image_size} at --batch {typed.batch}"
            )
            raise ValueError(
                f"{flag} {value} needs {size / 2**30:,.0f} GiB, this machine has {there / 2**30:,.0f}"
            )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
