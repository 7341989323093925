"""A controller with a bug, for those who claim to find bugs: `simulate` takes it where the real one would be."""

from functools import partial

from erfs.fabric import Fabric
from erfs.ids import LinkId
from erfs.messages import Drains, FactRef, Program, content_digest
from erfs.paths.programs import ProgramSet
from erfs_controller.core import ControllerCore
from erfs_controller.drain import Use
from erfs_controller.routes import Routes
from erfs_controller.timers import ControllerTimers
from erfs_scenario.campaign import Run
from erfs_scenario.measurement import Record
from erfs_scenario.plan import Plan
from erfs_scenario.simulation import simulate


class _ForgetfulRoutes(Routes):
    def __init__(self, fabric: Fabric, timers: ControllerTimers, forgotten: LinkId) -> None:
        super().__init__(fabric, timers)
        self._forgotten = forgotten

    def compute(self, use: Use, facts: tuple[FactRef, ...]) -> ProgramSet:
        computed = super().compute(use, facts)
        if not use.unusable:
            return computed
        programs = {node: self._without(program) for node, program in computed.programs.items()}
        return ProgramSet(programs, computed.unprotected, computed.sharing)

    def _without(self, program: Program) -> Program:
        links = {link: refs for link, refs in program.armed.links.items() if link != self._forgotten}
        changed = program.model_copy(update={"armed": program.armed.model_copy(update={"links": links})})
        return changed.model_copy(update={"digest": content_digest(changed)})


class ForgetfulController(ControllerCore):
    """While any link is down, it forgets to arm for one other: nothing is wrong unless that one is next."""

    def __init__(
        self,
        forgotten: LinkId,
        fabric: Fabric,
        settings: ControllerTimers,
        controller_id: str,
        stored_epoch: int,
        stored_drains: Drains | None,
    ) -> None:
        super().__init__(fabric, settings, controller_id, stored_epoch, stored_drains)
        self._routes = _ForgetfulRoutes(fabric, settings, forgotten)


def forgetting(link: LinkId) -> Run:
    """Return what runs a plan with a controller that forgets to arm for *link* while another is down."""

    def run(plan: Plan, record: Record) -> None:
        simulate(
            plan,
            record=record,
            on_progress=lambda _now_ns: None,
            make_controller=partial(ForgetfulController, link),
        )

    return run
