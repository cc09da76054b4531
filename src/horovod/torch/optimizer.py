"""`DistributedOptimizer`: any torch optimizer, stepping on gradients reduced over all ranks."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import required

from horovod.common.consistency import ConsistencyCheck, make_check
from horovod.common.dtypes import Adasum, Average, ReduceOp
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import submission
from horovod.torch.amp import reduce_before_unscaling
from horovod.torch.compression import Compression, Compressor
from horovod.torch.fingerprints import fingerprint_of
from horovod.torch.gradients import Reducer, Rules
from horovod.torch.naming import next_number
from horovod.torch.parameter_groups import resolve_groups, resolve_names

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object

STEP_AFTER_SYNCHRONIZE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after "
    "optimizer.synchronize(). The gradients are used as they are now; write "
    "`with optimizer.skip_synchronize(): optimizer.step()` to say so."
)
ZERO_GRAD_IN_FLIGHT = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
    "optimizer.synchronize(). Gradients are being reduced now and must not be cleared; call one of "
    "these first, or model.zero_grad() to throw away gradients of a backward pass that was meant "
    "for another optimizer."
)


@dataclass(frozen=True)
class Settings:
    """What the user asked for; carried along by copies and pickles of the optimizer."""

    op: ReduceOp
    process_set: ProcessSet
    compression: type[Compressor]
    predivide_factor: float
    sparse_as_dense: bool
    passes_per_step: int
    number: int  # of this optimizer among those built since init

    def reducer(self) -> Reducer:
        """Returns a reducer that follows these settings."""
        rules = Rules(
            self.op,
            self.process_set,
            self.compression,
            self.predivide_factor,
            self.sparse_as_dense,
        )
        return Reducer(rules, self.prefix, self.passes_per_step)

    @property
    def prefix(self) -> str:
        """What names begin with: equal on all ranks if they build their optimizers in the same order."""
        return f"optimizer{self.number}." if self.number else ""

    def consistency_check(self) -> ConsistencyCheck | None:
        """Returns what compares the parameters of the ranks, None unless it was asked for."""
        return make_check(f"{self.prefix}consistency", self.process_set)


class _DistributedOptimizer(_Base):
    """The part that is put before the class of the user's optimizer."""

    _settings: Settings
    _reducer: Reducer
    _consistency: ConsistencyCheck | None
    _parameter_names: dict[Tensor, str]
    _grouping: list[list[Tensor]]
    _should_synchronize: bool
    _synchronized: bool

    def _distribute(
        self, settings: Settings, names: dict[Tensor, str], grouping: list[list[Tensor]]
    ) -> None:
        self._settings = settings
        self._parameter_names = names
        self._grouping = grouping
        self._should_synchronize = True
        self._synchronized = False
        reducer = settings.reducer()
        reducer.add((parameter, names[parameter]) for parameter in _parameters(self.param_groups))
        reducer.set_groups(grouping)
        self._reducer = reducer
        self._consistency = settings.consistency_check()

    # -- gradients -------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Waits until all gradients are reduced.

        Parameters whose gradient did not come on this rank are reduced with zeros, and a window
        shorter than `backward_passes_per_step` with what there is. Call it to look at or change
        gradients before a step, then `with optimizer.skip_synchronize(): optimizer.step()`.

        Raises:
            HorovodInternalError: the ranks disagreed, a rank died or Horovod was shut down.
        """
        self._reducer.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside this context `step()` uses the gradients as they are."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes add up before a reduction; call it between steps."""
        _check_passes(passes)
        self._reducer.passes_per_step = passes
        self._settings = replace(self._settings, passes_per_step=passes)

    def _reduce_for_scaler(self) -> None:
        if self._should_synchronize:
            self._reducer.synchronize()

    def _window_done(self) -> None:
        self._reducer.stepped()
        self._synchronized = False

    # -- the optimizer's own methods -------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces the gradients, unless done or skipped, and lets the optimizer step.

        With a closure, gradients are reduced after each call of it. For LBFGS, whose decisions
        depend on the loss, the loss is reduced too, so that all ranks decide alike.

        Raises:
            HorovodConsistencyError: HOROVOD_CHECK_CONSISTENCY_STEPS is set, and ranks have different
                parameters after the step.
        """
        if closure is not None and self._should_synchronize:
            closure = self._reducing_closure(closure)
        elif self._should_synchronize:
            if self._reducer.settled and self._synchronized:
                warnings.warn(STEP_AFTER_SYNCHRONIZE, UserWarning, stacklevel=2)
            self._reducer.synchronize()
        elif self._reducer.in_flight:
            raise AssertionError(
                "optimizer.step() in skip_synchronize() while gradients are being reduced; call "
                "optimizer.synchronize() first."
            )
        try:
            result = super().step() if closure is None else super().step(closure)
        finally:
            self._window_done()
        if self._consistency is not None:
            self._check_consistency(self._consistency)
        return result

    # Torch wraps `step` of every class to run step hooks; the class beneath runs them, once.
    step.hooked = True  # type: ignore[attr-defined]

    def _check_consistency(self, check: ConsistencyCheck) -> None:
        """Counts a step, and compares the parameters of the ranks if it is time to."""
        # A GradScaler leaves it to fused optimizers to skip a step; then nothing was changed.
        skipped = getattr(self, "found_inf", None)
        if skipped is not None and bool(skipped):
            return
        if check.is_due():
            names = self._parameter_names
            check.compare([fingerprint_of(names[p], p) for p in _parameters(self.param_groups)])

    def _reducing_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        # A backward pass before step() is settled first, so that the closure may clear gradients.
        if self._reducer.in_flight:
            self._reducer.synchronize()

        def reducing() -> Any:
            loss = closure()
            self._reducer.synchronize()
            return self._reduced_loss(loss) if isinstance(self, torch.optim.LBFGS) else loss

        return reducing

    def _reduced_loss(self, loss: Any) -> Any:
        if not self._reducer.active:
            return loss
        rules = self._reducer.rules
        value = torch.as_tensor(loss).detach()
        handle = submission.allreduce(
            value, f"{self._reducer.prefix}loss", *rules.factors(), rules.process_set, urgent=True
        )
        reduced: Tensor = submission.wait(handle)
        return reduced if isinstance(loss, Tensor) else reduced.item()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients; AssertionError while they are being reduced."""
        if self._reducer.in_flight:
            raise AssertionError(ZERO_GRAD_IN_FLIGHT)
        self._reducer.forget()
        self._synchronized = False
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a parameter group; its parameters are reduced too, under generated names."""
        super().add_param_group(param_group)
        if "_reducer" not in self.__dict__:  # called by the constructor of the class beneath
            return
        index = len(self.param_groups) - 1
        group = self.param_groups[index]
        taken = set(self._parameter_names.values())
        for position, parameter in enumerate(group["params"]):
            name = group.get("param_names", {position: None})[position]
            if name is None or name in taken:
                name = f"allreduce.noname.{index}.{position}"
            self._parameter_names[parameter] = name
        self._reducer.add(
            (parameter, self._parameter_names[parameter]) for parameter in group["params"]
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state; gradients in flight are abandoned and windows start anew."""
        self._reducer.abandon()
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict(state_dict)

    # -- copies and pickles ----------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        names = [self._parameter_names[parameter] for parameter in _parameters(self.param_groups)]
        state = dict(super().__getstate__())
        state["_distributed"] = (self._settings, names, self._grouping)
        return _blank, (type(self).__mro__[_BASE],), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        distributed = state.pop("_distributed", None)  # load_state_dict comes here without it
        super().__setstate__(state)
        if distributed is not None:
            settings, names, grouping = distributed
            parameters = _parameters(self.param_groups)
            self._distribute(settings, dict(zip(parameters, names, strict=True)), grouping)


_BASE = 2  # place of the user's class in the order of inheritance, after the two of this module


def _parameters(param_groups: Iterable[dict[str, Any]]) -> Iterator[Tensor]:
    for group in param_groups:
        yield from group["params"]


def _distributed_class(base: type[torch.optim.Optimizer]) -> type[_DistributedOptimizer]:
    """Returns a subclass of `base` of the same name that reduces gradients."""
    namespace = {"__module__": __name__, "__doc__": base.__doc__}
    return type(base.__name__, (_DistributedOptimizer, base), namespace)


def _blank(base: type[torch.optim.Optimizer]) -> _DistributedOptimizer:
    cls = _distributed_class(base)
    return cls.__new__(cls)


def _check_passes(passes: int) -> None:
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step must be > 0, got {passes}")


def _like(optimizer: torch.optim.Optimizer) -> _DistributedOptimizer:
    """Builds the distributed twin of an optimizer: same class beneath, same parameter groups."""
    wrapped = isinstance(optimizer, _DistributedOptimizer)
    base = type(optimizer).__mro__[_BASE] if wrapped else type(optimizer)
    accepted = inspect.signature(base).parameters
    options = {
        name: value
        for name, value in optimizer.defaults.items()
        if name in accepted and value is not required
    }
    return _distributed_class(base)(optimizer.param_groups, **options)


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Returns an optimizer of the same class that reduces gradients over all ranks before a step.

    The result shares the parameter groups of `optimizer`; its state starts empty. Gradients are
    reduced while the backward pass goes on.

    Args:
        optimizer: computes the updates.
        named_parameters: names of the parameters, usually `model.named_parameters()`.
        compression: what travels on the wire, see `hvd.Compression`.
        backward_passes_per_step: backward passes whose gradients are summed before a reduction.
        op: `hvd.Average`, `Sum`, `Min`, `Max` or `Product`.
        gradient_predivide_factor: with Average, gradients are divided by this factor before and by
            size / factor after the sum.
        num_groups: deprecated, use `groups`.
        groups: number of groups, or lists of parameters, whose gradients are reduced as one.
        sparse_as_dense: send sparse gradients dense.
        process_set: ranks that train together; others step on their own gradients.

    Raises:
        ValueError: arguments that contradict each other; the text says which.
        NotImplementedError: `op=hvd.Adasum`, which comes in a later version.
    """
    if op == Adasum:
        raise NotImplementedError("op=hvd.Adasum is not available yet; use hvd.Average or hvd.Sum.")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is not supported with op != Average")
    _check_passes(backward_passes_per_step)
    if num_groups != 0:
        warnings.warn("num_groups is deprecated; use groups.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    parameters = [list(group["params"]) for group in optimizer.param_groups]
    names = resolve_names(parameters, named_parameters)
    settings = Settings(
        op=op,
        process_set=process_set,
        compression=compression,
        predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        passes_per_step=backward_passes_per_step,
        number=next_number("optimizer"),
    )
    grouping = resolve_groups(groups, names, process_set)
    reduce_before_unscaling(_DistributedOptimizer)
    distributed = _like(optimizer)
    distributed._distribute(settings, names, grouping)
    return distributed
