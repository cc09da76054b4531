"""What all distributed optimizers have, whatever the Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from horovod._keras.distribution import Distribution, Wrapping
from horovod._keras.flavour import inner_optimizer


class CallableList(list[Any]):
    """A list that may be called: `optimizer.variables` was a method before it became a property."""

    def __call__(self) -> CallableList:
        """Returns itself."""
        return self


class Distributed:
    """Put in front of the class of an optimizer that updates variables."""

    _HAS_AGGREGATE_GRAD: ClassVar[bool] = True  # asked for by training loops of old TensorFlow
    _hvd_wrapping: ClassVar[Wrapping]
    _hvd_distribute: ClassVar[Any]  # makes another optimizer distributed, in place
    _hvd: Distribution

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hvd_attach()

    def _hvd_attach(self) -> None:
        """Begins to be distributed."""
        self._hvd = Distribution(self._hvd_wrapping, f"Distributed{type(self).__name__}")
        if self._hvd.passes > 1:
            self._hvd_check_passes()

    def _hvd_check_passes(self) -> None:
        if getattr(self, "gradient_accumulation_steps", None):
            raise ValueError(
                "backward_passes_per_step of Horovod and gradient_accumulation_steps of Keras both sum "
                "gradients of several passes; use one of them."
            )
        if hasattr(self, "optimizers"):
            raise ValueError(
                f"backward_passes_per_step > 1 is not offered around a {type(self).__name__}; use "
                "gradient_accumulation_steps of the optimizers in it."
            )

    @property
    def _hvd_reduction(self) -> Any:
        return self._hvd.reduction

    @property
    def _agg_helper(self) -> Any:
        """What sums gradients of several passes; its `counter` counts them. None without."""
        return self._hvd.helper or self._hvd.window

    @property
    def variables(self) -> CallableList:
        """The optimizer's variables, as a list that may be called."""
        found: Any = super().variables  # type: ignore[misc]
        return CallableList(found if isinstance(found, list) else found())

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of this variable on its rank.

        Args:
            var: a variable of Keras or, with TensorFlow, of that.
        """
        self._hvd.register_local(var)

    def _allreduce(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # noqa: A002
        """Returns the gradients, reduced over the ranks."""
        return self._hvd.reduction(grads, vars)

    def compute_gradients(
        self, loss: Any, var_list: Any, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """Returns pairs of reduced gradient and variable, for `apply_gradients`. TensorFlow only.

        Args:
            loss: a function without arguments that returns the loss; or a tensor, with `tape`.
            var_list: variables, or a function that returns them.
            tape: the `tf.GradientTape` that recorded the loss.
        """
        native = getattr(super(), "compute_gradients", None)
        if native is not None:
            return self._hvd_natively_computed(native(loss, var_list, tape))
        return self._compute_gradients(loss, var_list, tape=tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """Like `compute_gradients`; `grad_loss` is the gradient of the loss itself."""
        native = getattr(super(), "_compute_gradients", None)
        if native is not None:
            return self._hvd_natively_computed(native(loss, var_list, grad_loss, tape))
        return self._hvd_computed(self._hvd_gradients(loss, var_list, grad_loss, tape))

    def get_gradients(self, loss: Any, params: Sequence[Any]) -> list[Any]:
        """Returns reduced gradients of a loss in a graph of TensorFlow 1."""
        native = getattr(super(), "get_gradients", None)
        if native is not None:
            pairs = self._hvd_natively_computed(zip(native(loss, params), params, strict=True))
        else:
            gradients = self._hvd_tensorflow("get_gradients").gradients(loss, params)
            pairs = self._hvd_computed(zip(gradients, params, strict=True))
        return [gradient for gradient, _ in pairs]

    def _hvd_natively_computed(self, pairs: Any) -> list[tuple[Any, Any]]:
        """Reduces what Keras's own method has computed."""
        return self._hvd_computed(pairs)

    def _hvd_computed(self, pairs: Any) -> list[tuple[Any, Any]]:
        pairs = list(pairs)
        if not pairs:
            return pairs
        gradients, variables = zip(*pairs, strict=True)
        self._hvd.computed = False  # of an earlier call whose result was not applied
        reduced = self._hvd.reduced(gradients, variables)
        self._hvd.computed = True
        return list(zip(reduced, variables, strict=True))

    def _hvd_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any, tape: Any
    ) -> list[tuple[Any, Any]]:
        tf = self._hvd_tensorflow("compute_gradients")
        if not callable(loss) and tape is None:
            raise ValueError(
                f"compute_gradients needs tape= with a loss that is a {type(loss).__name__}: the "
                "tf.GradientTape that recorded it. Or give a function that returns the loss."
            )
        tape = tape or tf.GradientTape()
        with tape:
            value = loss() if callable(loss) else loss
            value = self.scale_loss(value)  # type: ignore[attr-defined]
        variables = list(var_list() if callable(var_list) else var_list)
        gradients = tape.gradient(value, [getattr(v, "value", v) for v in variables], grad_loss)
        return list(zip(gradients, variables, strict=True))

    def _hvd_tensorflow(self, method: str) -> Any:
        backend = self._hvd.flavour.backend
        if backend != "tensorflow":
            raise NotImplementedError(
                f"{method}() works with Keras on TensorFlow, and this one runs on {backend}: compute "
                "gradients as the backend does and give them to apply()."
            )
        import tensorflow as tf

        return tf


class Scaled(Distributed):
    """Put in front of the class of a LossScaleOptimizer: the optimizer inside it is distributed."""

    @property
    def _hvd(self) -> Distribution:  # type: ignore[override]
        distribution: Distribution = inner_optimizer(self)._hvd
        return distribution

    def _hvd_natively_computed(self, pairs: Any) -> list[tuple[Any, Any]]:
        return list(pairs)  # by the optimizer inside, which has reduced them

    def _hvd_attach(self) -> None:
        inner = inner_optimizer(self)
        if not hasattr(inner, "_hvd"):
            self._hvd_distribute(inner, self._hvd_wrapping)
