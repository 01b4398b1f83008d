"""Folding of steps: BatchNorm into adjacent weights where that is exact, ReLU into the step before it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from unifews.serving.program import Program, Step

_WITH_RELU = ("linear", "affine", "sum", "diffuse")


def folded(program: Program) -> Program:
    """The same program in fewer steps."""
    draft = _Draft(program)
    for op, fold in (("affine", draft.merge_affine), ("affine", draft.fold_affine), ("activate", draft.fold_relu)):
        for number, step in enumerate(draft.steps):
            if step is not None and step.op == op:
                fold(number, step)
    return draft.program()


class _Draft:
    """Steps by number (0 is the input); a folded step is None, and its value is replaced by another one."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.steps: list[Step | None] = [None, *program.steps]
        self.replaced_by = list(range(len(self.steps)))
        self.uses = program.uses

    def producer(self, value: int) -> tuple[int, Step | None]:
        while self.replaced_by[value] != value:
            value = self.replaced_by[value]
        return value, self.steps[value]

    def is_private(self, value: int) -> bool:
        """Whether exactly one step reads it."""
        return value > 0 and self.uses[value] == 1

    def drop(self, number: int, becomes: int) -> None:
        self.uses[becomes] += self.uses[number] - 1
        self.steps[number], self.replaced_by[number] = None, becomes

    # ------------------------------------------------------------------------------------------------- scale and shift

    def merge_affine(self, number: int, step: Step) -> None:
        """Merge x - mean and · scale into one step."""
        at, before = self.producer(step.inputs[0])
        if before is None or before.op != "affine" or not self.is_private(at) or before.settings["relu"]:
            return
        if set(before.arrays) <= {"mean"} and "mean" not in step.arrays:
            self.steps[number] = replace(step, inputs=before.inputs, arrays={**before.arrays, **step.arrays})
            self.steps[at] = None

    def fold_affine(self, number: int, step: Step) -> None:
        _ = self._fold_into_producer(number, step) or self._fold_into_reader(number, step)

    def _fold_into_producer(self, number: int, step: Step) -> bool:
        """Fold scale and shift into the step that computes the input."""
        at, _ = self.producer(step.inputs[0])
        scale, shift = step.tensor("scale"), step.tensor("shift")
        if step.tensor("mean") is not None or step.settings["relu"]:
            return False
        if (scale is not None and not self._can_scale(at)) or (shift is not None and not self._can_shift(at)):
            return False
        if scale is not None:
            self._scale(at, scale)
        if shift is not None:
            self._shift(at, shift)
        self.drop(number, at)
        return True

    def _fold_into_reader(self, number: int, step: Step) -> bool:
        """Fold into the only linear step that reads it: W (s·x + t) = (W s) x + W t."""
        if self.uses[number] != 1 or step.tensor("mean") is not None or step.settings["relu"]:
            return False
        users = [i for i, s in enumerate(self.steps) if s is not None and any(self.producer(v)[0] == number for v in s.inputs)]
        user = self.steps[users[0]] if len(users) == 1 else None
        if user is None or user.op != "linear":
            return False
        scale, shift, bias = step.tensor("scale"), step.tensor("shift"), user.tensor("bias")
        arrays = dict(user.arrays)
        if shift is not None:
            more = user.weight.dense.double() @ shift.double()
            arrays["bias"] = (more if bias is None else more + bias.double()).float()
        arrays["weight"] = user.weight.scaled(inputs=scale) if scale is not None else user.weight
        self.steps[users[0]] = replace(user, arrays=arrays)
        self.drop(number, self.producer(step.inputs[0])[0])
        return True

    def _can_scale(self, value: int) -> bool:
        value, step = self.producer(value)
        if step is None or not self.is_private(value) or step.settings.get("relu"):
            return False
        if step.op == "sum":
            return all(map(self._can_scale, step.inputs))
        if step.op == "diffuse":  # magnitudes that are compared with a threshold must not change
            return step.settings["form"] in ("all", "columns") and self._can_scale(step.inputs[0])
        return step.op in ("linear", "affine")

    def _can_shift(self, value: int) -> bool:
        value, step = self.producer(value)
        if step is None or not self.is_private(value) or step.settings.get("relu"):
            return False
        if step.op == "sum":
            return self._shiftable(step) is not None
        return step.op in ("linear", "affine", "diffuse")

    def _shiftable(self, step: Step) -> int | None:
        """The input of a sum that can take the shift."""
        found = (i for i, v in enumerate(step.inputs) if step.settings["factors"][i] and self._can_shift(v))
        return next(found, None)

    def _scale(self, value: int, scale: Tensor) -> None:
        value, step = self.producer(value)
        assert step is not None
        if step.op == "sum":
            for one in step.inputs:
                self._scale(one, scale)
            return
        arrays = dict(step.arrays)
        for name in ("bias", "scale", "shift"):
            found = step.tensor(name)
            if found is not None:
                arrays[name] = found * scale
        if step.op == "linear":
            arrays["weight"] = step.weight.scaled(outputs=scale)
        elif step.op == "affine":
            arrays.setdefault("scale", scale)
        self.steps[value] = replace(step, arrays=arrays)
        if step.op == "diffuse":
            self._scale(step.inputs[0], scale)

    def _shift(self, value: int, shift: Tensor) -> None:
        value, step = self.producer(value)
        assert step is not None
        if step.op == "sum":
            which = self._shiftable(step)
            assert which is not None
            self._shift(step.inputs[which], shift / step.settings["factors"][which])
            return
        name = "shift" if step.op == "affine" else "bias"
        before = step.tensor(name)
        self.steps[value] = replace(step, arrays={**step.arrays, name: shift if before is None else before + shift})

    # -------------------------------------------------------------------------------------------------------------- ReLU

    def fold_relu(self, number: int, step: Step) -> None:
        if step.settings["kind"] != "relu":
            return
        at, before = self.producer(step.inputs[0])
        if before is not None and before.op in _WITH_RELU and self.is_private(at) and not before.settings["relu"]:
            self.steps[at] = replace(before, settings={**before.settings, "relu": True})
            self.drop(number, at)

    def program(self) -> Program:
        """The remaining steps that the result depends on, renumbered."""
        last, _ = self.producer(len(self.steps) - 1)
        needed, stack = {last}, [last]
        while stack:
            step = self.steps[stack.pop()]
            for value in step.inputs if step is not None else ():
                value, _ = self.producer(value)
                if value not in needed:
                    needed.add(value)
                    stack.append(value)
        number = {value: i for i, value in enumerate(sorted(needed | {0}))}
        steps = []
        for value in sorted(needed - {0}):
            step = self.steps[value]
            assert step is not None
            steps.append(replace(step, inputs=tuple(number[self.producer(v)[0]] for v in step.inputs)))
        return replace(self._program, steps=tuple(steps))


def batch_norm(norm: nn.BatchNorm1d) -> dict[str, Tensor]:
    """Scale and shift of a BatchNorm in eval mode."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = (norm.running_var.detach().cpu().double() + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight.detach().cpu().double()
    shift = -norm.running_mean.detach().cpu().double() * scale
    if norm.affine:
        shift = shift + norm.bias.detach().cpu().double()
    return {"scale": scale.float(), "shift": shift.float()}
