"""What an agent must still know after a restart.

Rule 1: whole and small; a damaged or missing one costs a re-installation, never an outage.
"""

from pydantic import BaseModel, ConfigDict, Field

from erfs.ids import DestinationId
from erfs.messages import Program


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SpokenFact(_Kept):
    """The last word this node published about the link at one of its ports."""

    port: str
    counter: int = Field(ge=1)
    down: bool


class AgentState(_Kept):
    """The persistent part of an agent."""

    incarnation: int = Field(default=0, ge=0)
    """Of the last start; the next start adds one."""
    program: Program | None = None
    """The last program whose routes the data plane confirmed."""
    facts: tuple[SpokenFact, ...] = ()
    """One for each port that was ever down."""
    sessions_down: tuple[str, ...] = ()
    """Ports whose session says that the far end does not answer; carrier alone brings none of them back."""
    cannot_reach_counter: int = Field(default=0, ge=0)
    cannot_reach: tuple[DestinationId, ...] = ()
