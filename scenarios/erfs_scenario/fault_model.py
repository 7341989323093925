"""How often does each kind of thing fail, how long does it stay so, and who says so? The data is in fault-model.yaml.

Rule 1: every rate has a basis and a source; what nobody publishes is called a choice.
Rule 2: an acceleration scales rates and repairs alike: rates times it, durations through it.
"""

import random
from collections.abc import Mapping, Sequence
from functools import cache
from math import exp, log
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from erfs.faults import FaultKind
from erfs.units import HOUR
from erfs_scenario import yaml_marks
from erfs_scenario.quantities import Duration
from erfs_scenario.schema import Selector

FILE: Final = Path(__file__).with_name("fault-model.yaml")
MONTH_NS: Final = 730 * HOUR
SIGMA: Final = 1.0
"""Of the lognormal repair times: our choice; the 95th percentile is then 3.1 times the mean."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Lasting(_Part):
    """A class of durations: lognormal with a mean, or uniform between two bounds."""

    weight: int = Field(ge=1)
    mean: Duration | None = None
    low: Duration = 0
    high: Duration = 0

    def draw(self, rng: random.Random) -> int:
        """Return a duration in ns."""
        if self.mean is None:
            return rng.randint(self.low, self.high)
        return int(rng.lognormvariate(log(self.mean) - SIGMA**2 / 2, SIGMA))


class Loss(_Part):
    """A class of loss rates, uniform in the logarithm."""

    weight: int = Field(ge=1)
    low_ppm: int = Field(ge=1)
    high_ppm: int = Field(le=1_000_000)


class Train(_Part):
    """Several faults of one thing, one after another."""

    low: int = Field(ge=1)
    high: int
    gap: Duration
    """The mean of the exponential pauses."""


class FaultRate(_Part):
    """How often, how long, and where that is from."""

    kind: FaultKind
    target: Selector | None = None
    per_month_ppm: int = Field(gt=0)
    """Events per thing and month of 730 h, in millionths."""
    lasts: Annotated[tuple[Lasting, ...], Field(min_length=1)]
    loss: tuple[Loss, ...] = ()
    train: Train | None = None
    basis: Literal["published", "inferred", "choice"]
    source: str = Field(min_length=1)

    def draw_duration(self, rng: random.Random) -> int:
        """Return how long one event lasts by nature, in ns."""
        return _weighted(self.lasts, rng).draw(rng)

    def draw_loss_ppm(self, rng: random.Random) -> int:
        """Return what share is lost, 0 where the kind loses nothing at random."""
        if not self.loss:
            return 0
        bounds = _weighted(self.loss, rng)
        return round(exp(rng.uniform(log(bounds.low_ppm), log(bounds.high_ppm))))


T = TypeVar("T", Lasting, Loss)


def _weighted(choices: Sequence[T], rng: random.Random) -> T:
    return rng.choices(choices, weights=[choice.weight for choice in choices])[0]


@cache
def published_rates() -> Mapping[str, FaultRate]:
    """Return the rates of fault-model.yaml by name, in the order of the file."""
    document = yaml_marks.load(FILE.read_bytes(), FILE.name)
    return TypeAdapter(dict[str, FaultRate]).validate_python(document.data)
