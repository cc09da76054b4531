"""The reducer: catches gradients as backward produces them and reduces them over the ranks.

One `Reducer` serves one distributed optimizer. Per parameter it counts backward passes; when the
window of `backward_passes_per_step` is full, the gradient is submitted while backward goes on.
`synchronize` submits what never arrived (zeros, or a short last window) and waits for everything.

A parameter has one reducer, the last that was built on it: an optimizer that shares a parameter
with a later one lets that one reduce it, so no gradient is ever reduced twice.

How a gradient travels is agreed on by all ranks when some rank has it for the first time, in
`synchronize`: sparse, dense in logical order, or dense in the channels-last order that all hold it
in (without a copy). Until then nothing of that parameter is sent, and a parameter that no rank has
ever used keeps `grad is None`, as in one process.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from horovod.common import engine
from horovod.common.collectives import poll
from horovod.common.dtypes import Max, ReduceOp, Sum
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from horovod.torch import submission
from horovod.torch.compression import Compressor
from horovod.torch.sparse import SparseReduction, empty_like, none_if_empty

_CHANNELS_LAST: dict[int, tuple[torch.memory_format, tuple[int, ...]]] = {
    4: (torch.channels_last, (0, 2, 3, 1)),
    5: (torch.channels_last_3d, (0, 2, 3, 4, 1)),
}
# Codes of the agreement; 0 stands for "no gradient here".
_LOGICAL, _STORAGE, _SPARSE = 1, 2, 16

EXCESS_TEXT = (
    "Gradients were computed more than backward_passes_per_step times before call to step() for "
    "parameter {name} (shape {shape}, backward_passes_per_step={passes}). Increase "
    "backward_passes_per_step to the number of backward passes that reach the parameter between "
    "two steps."
)


@dataclass(frozen=True)
class Rules:
    """How gradients are reduced; the same on all ranks."""

    op: ReduceOp
    process_set: ProcessSet
    compression: type[Compressor]
    predivide_factor: float
    sparse_as_dense: bool

    def needs_reduction(self) -> bool:
        """Tells whether there is anybody to reduce with; if not, nothing is ever sent."""
        ranks = self.process_set
        elastic = os.environ.get("HOROVOD_ELASTIC") == "1"
        return bool(ranks.included()) and ((ranks.size() or 1) > 1 or elastic)

    def factors(self) -> tuple[ReduceOp, float, float]:
        """Returns operator, prescale and postscale of a dense gradient."""
        if self.predivide_factor == 1.0:
            return self.op, 1.0, 1.0
        size = self.process_set.size() or 1
        return Sum, 1.0 / self.predivide_factor, self.predivide_factor / size


class Work(Protocol):
    """A reduction in flight."""

    def advance(self) -> None:
        """Starts the second phase, if there is one."""

    def done(self) -> bool:
        """Tells whether `finish` would return at once."""

    def finish(self) -> None:
        """Waits, and puts the reduced gradients where they belong."""


@dataclass(eq=False, slots=True)
class ParameterState:
    """What a reducer knows of one parameter."""

    parameter: Tensor
    name: str
    passes: int = 0  # backward passes since the last reduction
    work: Work | None = None
    submitted: Tensor | None = None  # the gradient object of a full window
    reduced: bool = False  # the gradient is the sum over the ranks
    shared: bool = False  # another optimizer steps this parameter too
    group: ParameterGroup | None = None
    hook: Any = None
    known: bool = False  # the ranks have agreed how the gradient travels
    storage_order: tuple[int, ...] | None = None  # agreed; None: logical order
    sparse_dim: int = 0  # agreed; 0: dense

    def code(self) -> int:
        """Returns what this rank has to say in the agreement."""
        gradient = self.parameter.grad
        if gradient is None:
            return 0
        if gradient.is_sparse:
            return _SPARSE + gradient.sparse_dim()
        known = _CHANNELS_LAST.get(gradient.dim())
        if known is None or gradient.is_contiguous():
            return _LOGICAL
        return _STORAGE if gradient.is_contiguous(memory_format=known[0]) else _LOGICAL

    def agree(self, highest: int, lowest: int) -> None:
        """Takes over what the ranks that had a gradient agree on."""
        self.known = highest != 0
        if highest != lowest:
            return
        if highest > _SPARSE:
            self.sparse_dim = highest - _SPARSE
        elif highest == _STORAGE:
            self.storage_order = _CHANNELS_LAST[self.parameter.dim()][1]

    def ready(self) -> None:
        """Notes that the gradient has been reduced."""
        self.work = self.submitted = None
        self.passes = 0
        self.reduced = True


@dataclass(eq=False)
class ParameterGroup:
    """Parameters whose gradients are reduced as one operation."""

    members: list[ParameterState] = field(default_factory=list)


@dataclass
class DenseWork:
    """One allreduce of one gradient or of a group."""

    handle: int
    states: list[ParameterState]
    wires: list[Tensor]  # views of the gradients, in the order in which they travel
    contexts: list[Any]
    rules: Rules

    def advance(self) -> None:
        """Dense gradients have one phase."""

    def done(self) -> bool:
        return poll(self.handle)

    def finish(self) -> None:
        answer = submission.wait(self.handle)
        results = answer if isinstance(answer, list) else [answer]
        for state, wire, context, result in zip(
            self.states, self.wires, self.contexts, results, strict=True
        ):
            value = self.rules.compression.decompress(result, context)
            if value is not wire:
                wire.copy_(value)
            self._hand_over(state, wire)
            state.ready()

    def _hand_over(self, state: ParameterState, wire: Tensor) -> None:
        """Optimizers for sparse gradients want them sparse, however they travelled."""
        was_sparse = state.submitted is not None and state.submitted.is_sparse
        if state.parameter.grad is not state.submitted:
            return
        if state.sparse_dim:
            state.parameter.grad = none_if_empty(wire.to_sparse(state.sparse_dim))
        elif was_sparse:
            state.parameter.grad = wire


@dataclass
class SparseWork:
    """One sparse gradient."""

    reduction: SparseReduction
    state: ParameterState
    advanced: bool = False

    def advance(self) -> None:
        if not self.advanced:
            self.advanced = True
            self.reduction.exchange_values()

    def done(self) -> bool:
        return False

    def finish(self) -> None:
        self.advance()
        result = self.reduction.finish()
        if self.state.parameter.grad is self.state.submitted:
            self.state.parameter.grad = none_if_empty(result)
        self.state.ready()


# Who reduces a parameter. The values are weak: parameters must not keep optimizers alive.
_reducers: WeakIdKeyDictionary = WeakIdKeyDictionary()


class Reducer:
    """Reduces the gradients of the parameters of one optimizer.

    Args:
        rules: how to reduce.
        prefix: put before every name on the wire; tells optimizers with equal names apart.
        passes_per_step: backward passes whose gradients add up before they are reduced.
    """

    def __init__(self, rules: Rules, prefix: str, passes_per_step: int) -> None:
        self._states: dict[int, ParameterState] = {}  # by id of the parameter
        self.rules = rules
        self.prefix = prefix
        self.active = rules.needs_reduction()
        self.passes_per_step = passes_per_step
        self.settled = False  # everything is reduced and no gradient came after that
        self._groups: list[ParameterGroup] = []
        self._abandoned: list[Work] = []
        self._round = engine.state.rounds

    # -- which parameters ------------------------------------------------------------------------

    def add(self, parameters: Iterable[tuple[Tensor, str]]) -> None:
        """Takes charge of parameters; those that are frozen now are hooked when they thaw."""
        for parameter, name in parameters:
            state = ParameterState(parameter, self.prefix + name)
            self._states[id(parameter)] = state
            if self.active and parameter.requires_grad:
                self._take(state)

    def set_groups(self, groups: Sequence[Sequence[Tensor]]) -> None:
        """Makes each list of parameters one operation; parameters elsewhere stay alone."""
        for parameters in groups:
            group = ParameterGroup([self._states[id(parameter)] for parameter in parameters])
            for state in group.members:
                state.group = group
            self._groups.append(group)

    def _take(self, state: ParameterState) -> None:
        parameter = state.parameter
        previous = _reducers.get(parameter)
        reducer = None if previous is None else previous()
        if reducer is not None and reducer is not self:
            reducer.release(parameter)
            state.shared = True
        own, key = weakref.ref(self), id(parameter)

        def hook(_: Tensor) -> None:  # holds neither reducer nor parameter alive
            alive = own()
            if alive is not None:
                alive.on_gradient(alive._states[key])

        state.hook = parameter.register_post_accumulate_grad_hook(hook)
        _reducers[parameter] = own

    def release(self, parameter: Tensor) -> None:
        """Gives a parameter away: from now on the next reducer catches its gradients."""
        state = self._states[id(parameter)]
        if state.work is not None:
            state.work.finish()
        state.hook.remove()
        state.hook = None
        state.shared = True

    def __del__(self) -> None:
        for state in self._states.values():
            if state.hook is not None:
                state.hook.remove()
                state.hook = None

    # -- while backward runs ---------------------------------------------------------------------

    def on_gradient(self, state: ParameterState) -> None:
        """Called by autograd when a gradient has been added to `parameter.grad`."""
        self._follow_init()
        self.settled = False
        if state.submitted is not None:
            self._start_over(state)
        state.reduced = False
        state.passes += 1
        if state.passes < self.passes_per_step:
            return
        if not state.known:
            state.submitted = state.parameter.grad  # as good as: it waits for the agreement
        elif state.group is None or state.sparse_dim:
            self._submit(state)
        else:
            self._submit_full_group(state.group)

    def _start_over(self, state: ParameterState) -> None:
        """A gradient came after a full window: fine only if the user threw the old one away.

        That happens when a backward pass for another model went through this parameter and
        `zero_grad` of the module cleared it. All ranks did the same, so waiting is safe.
        """
        gradient = state.parameter.grad
        if gradient is state.submitted or gradient is None or gradient.grad_fn is not None:
            shape = list(state.parameter.shape)
            raise AssertionError(
                EXCESS_TEXT.format(name=state.name, shape=shape, passes=self.passes_per_step)
            )
        if state.work is not None:
            state.work.advance()
            state.work.finish()
        state.submitted = None
        state.passes = 0

    def _submit_full_group(self, group: ParameterGroup) -> None:
        dense = self._dense_members(group)
        if all(state.passes >= self.passes_per_step for state in dense):
            self._submit_dense(dense, grouped=True)

    @staticmethod
    def _dense_members(group: ParameterGroup) -> list[ParameterState]:
        """Returns the members that travel together now; the same on all ranks."""
        return [
            state
            for state in group.members
            if state.known
            and state.hook is not None
            and state.parameter.requires_grad
            and not state.sparse_dim
        ]

    # -- submitting ------------------------------------------------------------------------------

    def _submit(self, state: ParameterState) -> None:
        if state.sparse_dim and not self.rules.sparse_as_dense:
            self._submit_sparse(state)
        else:
            self._submit_dense([state], grouped=False)

    def _submit_sparse(self, state: ParameterState) -> None:
        gradient = state.parameter.grad
        if gradient is None:
            gradient = state.parameter.grad = empty_like(state.parameter, state.sparse_dim)
        state.submitted = gradient
        tensor = gradient if gradient.is_sparse else gradient.to_sparse(state.sparse_dim)
        rules = self.rules
        reduction = SparseReduction(tensor.detach(), state.name, rules.op, rules.process_set)
        state.work = SparseWork(reduction, state)

    def _submit_dense(self, states: list[ParameterState], *, grouped: bool) -> None:
        rules = self.rules
        wires = [self._wire(state) for state in states]
        pairs = [rules.compression.compress(wire) for wire in wires]
        sent = [pair[0] for pair in pairs]
        rule = (states[0].name, *rules.factors(), rules.process_set)
        if grouped:
            handle = submission.grouped_allreduce(sent, *rule, in_place=True)
        else:
            handle = submission.allreduce(sent[0], *rule, in_place=True)
        work = DenseWork(handle, states, wires, [pair[1] for pair in pairs], rules)
        for state in states:
            state.work = work

    def _wire(self, state: ParameterState) -> Tensor:
        """Returns the gradient in the order in which it travels, zeros where there is none."""
        gradient = state.parameter.grad
        if gradient is None:
            gradient = state.parameter.grad = torch.zeros_like(state.parameter)
        state.submitted = gradient
        gradient = gradient.detach()
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        return gradient if state.storage_order is None else gradient.permute(state.storage_order)

    # -- synchronising ---------------------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        """Tells whether a reduction has been submitted and not waited for."""
        return any(state.work is not None for state in self._states.values())

    def synchronize(self) -> None:
        """Reduces everything that is not reduced yet and waits for all of it.

        Raises:
            HorovodInternalError: a reduction failed; the others were waited for.
        """
        self._follow_init()
        if self.settled:
            return
        if self.active:
            for state in self._states.values():
                if state.hook is None and not state.shared and state.parameter.requires_grad:
                    self._take(state)
            own = [state for state in self._states.values() if state.hook is not None]
            self._settle(own)
            self._settle_elsewhere()
        self.settled = True

    def _settle_elsewhere(self) -> None:
        for state in self._states.values():
            if state.hook is not None or not state.shared:
                continue
            reference = _reducers.get(state.parameter)
            reducer = None if reference is None else reference()
            if reducer is None:
                self._take(state)
                self._settle([state])
            else:
                reducer.settle_shared(state.parameter)

    def settle_shared(self, parameter: Tensor) -> None:
        """Reduces one parameter for another optimizer that steps it too."""
        state = self._states[id(parameter)]
        state.shared = True
        self._settle([state])

    def _settle(self, states: list[ParameterState]) -> None:
        self._agree()
        self._submit_missing(states)
        works = list({id(state.work): state.work for state in states if state.work}.values())
        failure: HorovodInternalError | None = None
        for phase in ("advance", "finish"):
            for work in works:
                try:
                    work.advance() if phase == "advance" else work.finish()
                except HorovodInternalError as error:
                    failure = failure or error
        if failure is not None:
            for state in states:
                state.work = state.submitted = None
            raise failure

    def _submit_missing(self, states: list[ParameterState]) -> None:
        for state in states:
            missing = state.known and not state.reduced and state.work is None
            if not missing or not state.parameter.requires_grad:
                continue
            if state.group is None or state.sparse_dim:
                self._submit(state)
            else:
                self._submit_dense(self._dense_members(state.group), grouped=True)

    def _agree(self) -> None:
        """Finds out how gradients travel that have not travelled yet; see the top of the file."""
        unknown = [
            state for state in self._states.values() if not state.known and state.hook is not None
        ]
        if not unknown:
            return
        unknown.sort(key=lambda state: state.name)
        codes = torch.tensor([state.code() for state in unknown], dtype=torch.uint8)
        # Max of the complement is the complement of the lowest code of those that have a gradient.
        both = torch.stack([codes, torch.where(codes == 0, 0, 255 - codes)])
        handle = submission.allreduce(
            both,
            f"{unknown[0].name}.layouts",
            Max,
            1.0,
            1.0,
            self.rules.process_set,
            in_place=True,
            urgent=True,
        )
        highest, complement = submission.wait(handle).tolist()
        for state, high, low in zip(unknown, highest, complement, strict=True):
            state.agree(high, 255 - low)

    # -- starting afresh -------------------------------------------------------------------------

    def forget(self) -> None:
        """The gradients are being cleared: windows start anew."""
        self.settled = False
        for state in self._states.values():
            state.passes = 0
            state.submitted = None
            state.reduced = False
            if state.shared and state.hook is None:
                self._forget_elsewhere(state.parameter)

    @staticmethod
    def _forget_elsewhere(parameter: Tensor) -> None:
        reference = _reducers.get(parameter)
        reducer = None if reference is None else reference()
        if reducer is not None:
            state = reducer._states[id(parameter)]
            state.passes = 0
            state.submitted = None
            state.reduced = False
            reducer.settled = False

    def stepped(self) -> None:
        """The optimizer has used the gradients; a shared one may still be wanted elsewhere."""
        self.settled = False
        for state in self._states.values():
            if not state.shared:
                state.reduced = False

    def _follow_init(self) -> None:
        """After a new `init`, what was agreed on or in flight before it is void."""
        if self._round == engine.state.rounds:
            return
        self._round = engine.state.rounds
        self._abandoned.clear()
        self.active = self.rules.needs_reduction()
        for state in self._states.values():
            state.work = state.submitted = state.storage_order = None
            state.known = False
            state.sparse_dim = 0
        self.forget()

    def abandon(self) -> None:
        """Drops what is in flight, without waiting for other ranks, and starts new windows."""
        self._follow_init()
        works = {id(state.work): state.work for state in self._states.values() if state.work}
        self._abandoned = [
            work for work in [*self._abandoned, *works.values()] if not _drained(work)
        ]
        for state in self._states.values():
            state.work = state.submitted = None
        self.forget()


def _drained(work: Work) -> bool:
    if not work.done():
        return False
    with contextlib.suppress(HorovodInternalError):  # whoever abandoned it knows that it failed
        work.finish()
    return True


__all__ = ["Reducer", "Rules"]
