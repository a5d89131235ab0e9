"""The methods that make more of a loss than its value: their numbers, and what each makes from them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import optax

from jdml.objectives import Objective
from jdml.ops.checks import one_of
from jdml.recipes.config import Config

Recipe = TypeVar("Recipe", bound=Config)
"""A :class:`jdml.recipes.Recipe`, which holds methods and is not imported here."""
METHODS: dict[str, type["Method"]] = {}
"""Every method by its name: a subclass of :class:`Method` is one."""


@dataclasses.dataclass(frozen=True)
class Method(Config):
    """A method around a recipe's loss. The fields are the method's own numbers; the rest stands on the class.

    Attributes:
        name: the method's name.
        kind: whether it is for losses of pairs or of proxies.
        loss: the loss it has by default.
        proxies: how many proxies per class it brings to a pair loss; None where it brings none.
        chooses_proxies: whether its proxies are chosen from samples, not learned from a start.
        needs_validation: whether it acts on evaluations, for which rows must be held out.
    """

    name: ClassVar[str]
    kind: ClassVar[Literal["pair", "proxy"]]
    loss: ClassVar[str]
    proxies: ClassVar[int | None] = None
    chooses_proxies: ClassVar[bool] = False
    needs_validation: ClassVar[bool] = False

    def to_json(self) -> dict[str, Any]:
        """Return the name and the numbers."""
        return {"name": self.name, **super().to_json()}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        METHODS[cls.name] = cls

    @classmethod
    def onto(cls, base: Any, **settings: Any) -> Any:
        """Put the method onto the recipe of a loss, with what else it changes there.

        Args:
            base: the recipe.
            **settings: the method's own numbers.

        Returns:
            The recipe.

        Raises:
            TypeError: a setting of another kind, or one that there is not.
            ValueError: a number out of range, or a loss that the method is not for.
        """
        return base.replace(loss={"method": cls(**settings)})

    def objective(
        self,
        loss: Any,
        loss_fn: Callable[..., Any],
        num_classes: int,
        dim: int,
        settings: Mapping[str, Any],
    ) -> Objective | None:
        """Make the objective from the recipe's loss; None where the loss's own is meant."""
        return None

    def transform_gradients(self) -> optax.GradientTransformation | None:
        """Make what acts on the gradients of all roles; None for nothing."""
        return None

    def learning_rates(self) -> Mapping[str, float]:
        """Return learning rates of roles that do not follow the recipe's."""
        return {}


def with_method(base: Recipe, name: str, **settings: Any) -> Recipe:
    """Put a method onto the recipe of a loss.

    Args:
        base: the recipe.
        name: one of ``METHODS``.
        **settings: as of the method's ``onto``, such as :meth:`CCPConfig.onto` and :meth:`NIRConfig.onto`.

    Returns:
        The recipe.

    Raises:
        TypeError: a setting of another kind.
        ValueError: an unknown method, a number out of range, or a loss that the method is not for.

    Example:
        >>> from jdml.recipes import LossConfig, Recipe
        >>> with_method(Recipe(loss=LossConfig("proxy_anchor")), "nir", weight=0.02).loss.method.weight
        0.02
    """
    one_of("method", name, METHODS)
    recipe: Recipe = METHODS[name].onto(base, **settings)
    return recipe
