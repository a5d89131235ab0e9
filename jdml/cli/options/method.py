"""Options of the method: the loss, what it sees, what is made of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jdml import registry
from jdml.cli.options.base import IN_RECIPE, Part, as_help, as_typed, flag
from jdml.recipes import OF_PAIRS, RECIPES, Recipe, recipe, settings_of, with_method
from jdml.recipes.words import parse_settings
from jdml.registry.constraints import nearest, non_negative, positive

if TYPE_CHECKING:
    LossName = str
    MethodName = str
    RecipeName = str
else:
    LossName = Literal[registry.pair_losses() + registry.proxy_losses()]
    MethodName = Literal[tuple(sorted((*registry.METHODS, "plain")))]
    RecipeName = Literal[tuple(sorted(RECIPES))]
DEFAULT_LOSS = {
    "plain": "triplet",
    **{name: method.loss for name, method in registry.METHODS.items()},
}


def _settings_help() -> Any:
    """What each method has to set, and its defaults, from where they stand."""
    import tyro

    def typed(settings: dict[str, Any]) -> str:
        return " ".join(
            f"{key}={'' if value is None else value}" for key, value in settings.items()
        )

    own = {name: settings_of(name, of_paper=False) for name in registry.METHODS}
    told = [f"{name}: {typed(settings)}" for name, settings in own.items()]
    also = []
    for name in RECIPES:
        known = own.get(name, {})
        more = {k: v for k, v in settings_of(name).items() if k not in known or known[k] != v}
        also += [f"{name}: {typed(more)}"] if more else []
    return tyro.conf.arg(
        help="The method's own settings, as name=value; their defaults: "
        f"{'; '.join(told)}. In jdml benchmark {'; '.join(also)}."
    )


def _methods_help() -> Any:
    """What each method is, from its record."""
    import tyro

    told = {
        name: str(method.__doc__).partition("\n")[0].rstrip(".")
        + ("; needs --validation" if method.hook else "")
        for name, method in registry.METHODS.items()
    }
    return tyro.conf.arg(
        help=f"plain: the loss alone. {'. '.join(f'{name}: {words}' for name, words in told.items())}."
    )


def _proxies_help() -> Any:
    """Which methods bring proxies, and how many there are, from the records."""
    methods = {name: method.proxies for name, method in registry.METHODS.items() if method.proxies}
    losses = {name: loss.proxies for name, loss in registry.LOSSES.items() if loss.proxies > 1}
    numbers = ", ".join(f"{name}: {number}" for name, number in {**losses, **methods}.items())
    return as_help(
        f"Proxies per class of a proxy loss or of {' or '.join(methods)}; 0: a field of samples alone. Default: "
        f"1 ({numbers}); jdml benchmark: the paper's."
    )


def _losses_help() -> Any:
    """Which loss each method is made of, from the records."""
    defaults = ", ".join(f"{name}: {loss}" for name, loss in DEFAULT_LOSS.items())
    return as_help(
        "The loss. Proxy losses learn one vector or more per class. Default, of image files with --method plain: "
        "the recommended recipe, circle with margin 0.1 and gamma 100, a cosine of the rate after a warm-up, "
        "batches and --miner by the size of the classes (jdml.recipes.recommended); otherwise, by --method: "
        f"{defaults}."
    )


def _miners_help() -> Any:
    """What miners are called, from their records."""
    return as_help(
        "Which pairs a pair loss sees: none, or names joined by +, each with its settings after a colon, such as "
        "eps+semi_hard or easy_positive+semi_hard_negative:margin=0.3. "
        f"The names: {', '.join(sorted(registry.MINERS))}. Default: none; of the recommended recipe (see --loss) "
        "easy_positive where classes are large."
    )


@dataclass(frozen=True)
class Settings(Part):
    """Numbers of the method and its loss in the place of their own."""

    method_setting: Annotated[tuple[str, ...], IN_RECIPE, _settings_help()] = ()
    loss_setting: Annotated[tuple[str, ...], IN_RECIPE] = ()
    """The loss's own numbers in the place of its defaults or the paper's, as name=value: margin=0.2 gamma=80."""
    proxies_per_class: Annotated[int | None, IN_RECIPE, _proxies_help()] = None
    sampled_classes: Annotated[int | None, positive, IN_RECIPE] = None
    """For very many classes: a step of a proxy loss sees the classes of its batch and others, drawn at random, so many
    in all. Default: all classes."""

    def changes(self, base: Recipe) -> dict[str, Any]:
        """The loss's settings, and its proxies."""
        names = ("proxies_per_class", "sampled_classes")
        own = parse_settings(self.loss_setting, "--loss-setting")
        return {
            **super().changes(base),
            **self.typed({name: name for name in names}),
            "settings": {**base.settings, **own},
        }

    def method_settings(self) -> dict[str, Any]:
        """Read ``--method-setting``: numbers as numbers."""
        return parse_settings(self.method_setting, "--method-setting", words=True)


@dataclass(frozen=True)
class Method(Settings):
    """The loss, the pairs it sees, and what is made of it."""

    method: Annotated[MethodName, IN_RECIPE, _methods_help()] = "plain"
    loss: Annotated[LossName | None, IN_RECIPE, _losses_help()] = None
    learn_beta: Annotated[Literal["class", "shared"] | None, IN_RECIPE] = None
    """The margin loss's boundary beta is learned, one for each class or one for all, from the loss's (1.2) on. Default:
    it stays where it is."""
    miner: Annotated[str | None, IN_RECIPE, _miners_help()] = None
    memory: Annotated[int, non_negative, IN_RECIPE] = 0
    """Also compare a pair loss's batch with this many remembered embeddings (cross-batch memory)."""
    proxies_start: Annotated[Literal["random", "samples"] | None, IN_RECIPE] = None
    """Where proxies begin: on the sphere at random, or on samples of their class. Default: samples with
    potential_field, whose forces fade with distance, and random with other losses."""
    normalize: Annotated[Literal["ball", "none", "sphere"] | None, IN_RECIPE] = None
    """sphere (the default): embeddings are scaled to length 1, in the loss and in the scores. ball (ccp's default):
    those longer than 1."""

    @property
    def loss_name(self) -> str:
        """The loss, as typed or by the method."""
        return self.loss or DEFAULT_LOSS[self.method]

    def check(self) -> None:
        """Refuse what nothing would read."""
        super().check()
        if self.method == "plain" and self.method_setting:
            known = " or ".join(f"--method {name}" for name in registry.METHODS)
            raise ValueError(f"--method-setting needs {known}")
        if getattr(self, "beta_lr_factor", None) is not None and self.learn_beta is None:
            raise ValueError("--beta-lr-factor needs --learn-beta")
        method = registry.METHODS.get(self.method)
        alone = registry.LOSSES[self.loss_name].kind == "pair" and not (method and method.proxies)
        for option in ("proxies_per_class", "proxies_lr_factor", "proxies_start"):
            if alone and getattr(self, option, None) is not None:
                raise ValueError(
                    f"{flag(option)} is for proxy losses; {self.loss_name} is a pair loss"
                )
        if self.proxies_per_class == 0 and getattr(self, "proxies_lr_factor", None) is not None:
            raise ValueError("--proxies-lr-factor needs proxies; --proxies-per-class is 0")

    def changes(self, base: Recipe) -> dict[str, Any]:
        """Also what the loss sees, and where it lives."""
        own = self.typed({"proxies_start": "start", "normalize": "normalize", "miner": "miner"})
        more = {"memory": self.memory, "learn_beta": self.learn_beta}
        return {**super().changes(base), **own, **more}

    def of_loss(self) -> Recipe:
        """Give the recipe of the loss, its proxies where they begin best, with what the method makes of it."""
        loss = registry.LOSSES[self.loss_name]
        alone = self.proxies_per_class == 0
        base = Recipe(
            loss=loss.name,
            start="random" if alone else loss.start,
            batch=64,
            small_classes="refuse",
            rate=1e-3,
            steps=1000,
        )
        if self.method == "plain":
            return base
        own = self.method_settings()
        known = settings_of(self.method, of_paper=False)
        for name in own:
            if name not in known:
                raise ValueError(
                    f"--method-setting: {self.method} has no setting {name!r}; it has {', '.join(sorted(known))}"
                    f"{nearest(name, known)}"
                )
        return with_method(base, self.method, **own)


@dataclass(frozen=True)
class PaperMethod(Settings):
    """A method as its paper trains it."""

    method: RecipeName = "pfml"
    """What is trained: a method of this library, or one that its papers compare with."""

    def check(self) -> None:
        """Refuse proxies where there are none."""
        super().check()
        each, least = self.proxies_per_class, 0 if self.method in ("pfml", "cpml") else 1
        of_pairs = self.method in OF_PAIRS
        if each is not None and each < least:
            raise ValueError(f"--proxies-per-class must be at least {least}, got {each}")
        if each is not None and of_pairs and self.method != "ccp":
            raise ValueError(
                f"--proxies-per-class is for proxy methods; {self.method} is one of pairs"
            )
        if self.sampled_classes is not None and of_pairs:
            raise ValueError(
                f"--sampled-classes is for proxy methods; {self.method} compares with samples"
            )

    def of_paper(self, dataset: str, protocol: Any, backbone: str) -> Recipe:
        """Look the recipe up, with what was typed about the method."""
        try:
            with as_typed():
                return recipe(
                    self.method,
                    dataset,
                    protocol=protocol,
                    backbone=backbone,
                    **self.method_settings(),
                )
        except (TypeError, ValueError) as error:
            raise ValueError(f"--method-setting: {error}") from error
