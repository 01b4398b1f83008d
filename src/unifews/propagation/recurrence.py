"""One Lanczos recurrence per feature column, on rows stored in few bytes (ADR 27).

Values are kept as q = D^-r x, so that one hop is (S q)[u] = keep(u)·q[u] + Σ_v A[u,v]·q[v] / d(u) for every r. S is symmetric
in the inner product ⟨q, q'⟩ = Σ_u d(u) q(u) q'(u), and in it each column, less its stationary part, has the recurrence

    S p_k = b_k p_{k+1} + a_k p_k + b_{k-1} p_{k-1}.

a_k is a sum over all rows of the hop that is to subtract a_k p_k. So a hop stores, rounded to a row format,

    s_{k+1} = S p_k - σ_k p_k - b_{k-1} p_{k-1}

with a guess σ_k, and measures ⟨s_{k+1}, p_k⟩ = a_k - σ_k and ‖s_{k+1}‖² on the way. That gives p_{k+1} as a combination of what
is stored. The next hop works on combinations: it gathers s_{k+1} and reads the row's own s_0 .. s_k, as far as their
coefficients are large. The others it leaves out, which is no error: s_{k+2} then has known parts along earlier p_j.
At the end f(S) x = ‖x‖ Σ c_k p_k is one combination too (`unifews.propagation.spectral` says what c is, and its error).

What is rounded is known: ρ_k = ‖stored - s_k‖ is measured. An error δ made at p_j goes through the rest of the recurrence and
appears in the result as g_j(S) δ with a known polynomial g_j (`spectral.amplification`). Its norm is taken for an error like
the column itself and for a random one, whichever is more; and for the part of δ that is the same in all rows. Where
rounding is as large as what is left of a column, what follows is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from unifews.kernels import LANES, aligned, native
from unifews.kernels.formats import RowFormat, StoredRows
from unifews.propagation.features import FeatureMatrix, Floats
from unifews.propagation.spectral import Doubles, Estimate, Series, amplification, estimate
from unifews.propagation.symmetric import SymmetricOperator
from unifews.propagation.tiles import Shape

_SUMS = 4  # ⟨s', s⟩, ‖s'‖², ‖stored - s'‖², and ‖s'‖² in the caller's norm: see native/rows.h
_STATIONARY = 1e-11  # of a column's squared norm: less than this beside the stationary part is rounding
_FINISHED = 1e-6  # b_k of a column whose Krylov space is exhausted
_ARITHMETIC = 2.0**-23  # relative rounding of a sum in float32
_UNREAD = 0.1  # of b_k: a hop does not read iterates of which it takes less than this
_NEGLIGIBLE = 0.1  # of the tolerance: what may be left out of a column because rounding has spoilt it
_UNCERTAIN = 0.05  # error of a_k beyond which J says little
_SAMPLE = 512  # rows whose rounding is looked at
_QUADRATURES, _RANGES = 16, 32  # columns that give the spectrum of an average one, and ranges of eigenvalues
_CARRIED = 1.25  # rounding in the result over what is expected of random errors


@dataclass
class _State:
    """The iterates of a tile in one format and the recurrence so far; arrays over the tile's columns, padding included."""

    format: RowFormat
    stored: list[StoredRows]
    basis: list[Doubles]
    """p_k = Σ_l basis[k][l] ∘ s_l"""
    nu: Doubles
    """s_k = nu p_k + epsilon p_{k-1} + what was not read"""
    epsilon: Doubles
    live: NDArray[np.bool_]
    known: NDArray[np.int64]
    """Rows of J before rounding was as large as what was left of a column; p_k after that many are not used."""
    mapped: dict[int, StoredRows] = field(default_factory=dict)
    """Iterates that are in files. The last of them, which is gathered, is in memory too, and `stored` has that copy."""
    a: list[Doubles] = field(default_factory=list)
    b: list[Doubles] = field(default_factory=list)
    applied: Doubles | None = None
    """S p_{k-1} in terms of s_0 .. s_k"""
    unread: Doubles = field(default_factory=lambda: np.zeros((0, 0)))
    """What the last hop left out of s_0 .. s_{k-1}"""
    image: list[Doubles] = field(default_factory=list)
    """S s_l = Σ_j image[l][j] ∘ s_j, j ≤ l + 1"""
    parts: list[Doubles] = field(default_factory=list)
    """s_l = Σ_j parts[l][j] ∘ p_j, j ≤ l"""
    losses: list[Doubles] = field(default_factory=list)
    """‖stored - s_l‖²"""
    rounding: list[Doubles] = field(default_factory=list)
    lengths: list[Doubles] = field(default_factory=list)
    """‖s_k‖"""
    sizes: list[Doubles] = field(default_factory=list)
    """Norm of p_k in the caller's norm, about."""


@dataclass(frozen=True)
class Accuracy:
    """Of each column of a tile, after some hops."""

    found: Estimate
    rounding: Doubles
    """Relative error of what was stored in few bytes, [width]"""
    active: NDArray[np.bool_]
    """False: the column is zero or stationary, and exact."""

    @property
    def errors(self) -> Doubles:
        return np.where(self.active, np.hypot(self.found.truncation, self.rounding), 0.0)

    def shared(self, op: SymmetricOperator) -> Accuracy:
        """That of the first worker; which columns are active all know."""
        found = self.found
        coefficients, norm, truncation = (op.shared(each) for each in (found.coefficients, found.norm, found.truncation))
        return Accuracy(Estimate(coefficients, norm, truncation), op.shared(self.rounding), self.active)


class Recurrence:
    """The recurrences of one tile of columns."""

    def __init__(self, op: SymmetricOperator, features: FeatureMatrix, shape: Shape, sums: Doubles) -> None:
        """`sums` [2, width]: Σ weight·q and Σ weight·q² of the columns."""
        self.op, self.features, self.shape, self.padded = op, features, shape, shape.blocks * LANES
        total = op.total
        whole, square = self._wide(sums[0]), self._wide(sums[1])
        self.mean = whole / total if op.stationary is not None and total else np.zeros(self.padded)
        self.rest = np.maximum(square - total * self.mean**2, 0.0)
        self.rest[self.rest <= _STATIONARY * square] = 0.0
        self.scale = np.where(self.rest > 0, 1 / np.sqrt(np.where(self.rest > 0, self.rest, 1.0)), 0.0)
        self.alike = np.zeros(self.padded)
        """The share of squared rounding errors that is the same in all rows"""
        self.state: _State | None = None

    def _wide(self, values: Doubles) -> Doubles:
        wide = np.zeros(self.padded)
        wide[: self.shape.width] = values
        return wide

    def start(self, format: RowFormat) -> Doubles:
        """Encode the columns; returns the share of each that is lost to rounding."""
        op, shape = self.op, self.shape
        self.release()
        stored, mapped = self._output(format, 0)
        sums = np.zeros((_SUMS, self.padded))
        mean, scale = _floats(self.mean), _floats(self.scale)
        nodes = np.flatnonzero(op.weight)[:: max(1, op.nodes // _SAMPLE)].copy()  # not a view of all of them
        some = np.zeros((len(nodes), self.padded))
        for first, rows, column in self._rows():
            inside = (nodes >= first) & (nodes < first + len(rows))
            some[inside, : shape.width] = rows[nodes[inside] - first, column : column + shape.width]
            native.encode_rows(
                format=format.code,
                x=rows,
                row0=first,
                column0=column,
                width=shape.width,
                blocks=shape.blocks,
                source=op.hop.diffusion.source,
                weight=op.weight,
                own=op.own,
                mean=mean,
                scale=scale,
                rows=stored.rows,
                steps=stored.steps,
                sums=sums,
                threads=op.hop.threads,
            )
        sums = op.reduced(sums)
        if op.total:
            part = StoredRows(stored.rows[nodes], stored.steps[nodes] if stored.steps.size else stored.steps)
            exact = (op.hop.diffusion.source[nodes, None] * some - self.mean) * self.scale
            self.alike = op.alike(format.decode(part, shape.blocks) - exact, nodes)
        nu = np.sqrt(sums[1])
        live = nu > 0
        inverse = _inverse(nu)
        self.state = _State(format, [], [inverse[None]], nu, np.zeros(self.padded), live, np.full(self.padded, 1000))
        self._append(stored, mapped)
        self.state.parts.append(nu[None])
        offset = _ARITHMETIC * np.abs(self.mean) * self.scale * np.sqrt(op.total)  # x - mean, in float32
        self.state.lengths.append(nu)
        self.state.losses.append(sums[2] + np.square(offset))
        self.state.rounding.append(np.sqrt(self.state.losses[0]) * inverse)
        self.state.sizes.append(np.sqrt(sums[3]) * inverse if op.own is not None else np.ones(self.padded))
        return self.state.rounding[0]

    @property
    def lost(self) -> Doubles:
        """The share of each column that the format has lost of the input, [width]"""
        assert self.state is not None
        return self.state.rounding[0][: self.shape.width]

    def _rows(self) -> Iterator[tuple[int, Floats, int]]:
        """Pieces of the input, one at a time: their first row, the values, and where the tile's columns begin in them."""
        features, shape = self.features, self.shape
        if features.sparse is not None:
            yield 0, features.columns(shape.column, shape.column + shape.width, self.op.hop.threads), 0
            return
        for first, last in features.chunks():
            yield first, features.rows(first, last), shape.column

    def hop(self, shift: Doubles | float) -> None:
        """One more iterate, with `shift` the guess σ_k, of each column or of all."""
        state, op, shape = self.state, self.op, self.shape
        assert state is not None
        k = len(state.basis) - 1
        inverse = _inverse(state.nu) * state.live
        own, previous = state.basis[k], state.basis[k - 1] if k else None
        mix = -shift * own
        if previous is not None and state.applied is not None:
            mix -= inverse * state.epsilon * state.applied
            mix[:k] -= state.b[-1] * previous
            for at in np.flatnonzero(state.unread.any(axis=1)):
                mix[: at + 2] += inverse * state.unread[at] * state.image[at]
        mix *= state.live
        lengths = np.array(state.lengths)
        size = np.abs(mix) * lengths
        # What is left in s_{k+1} is rounded with it, and b_k is about the last one. Rows of float32 are for columns that need
        # every digit.
        least = _UNREAD * (state.b[-1] if k else 1.0) if state.format.rounding else 0.0
        is_read: NDArray[np.bool_] = np.asarray(((size > least) & state.live).any(axis=1))
        is_read[k] = True
        read = np.flatnonzero(is_read)
        unread = np.where(is_read[:, None], 0.0, mix)
        op.refresh(k, state.format, state.stored[-1], shape.blocks)
        out, mapped = self._output(state.format, k + 1)
        sums = np.zeros((_SUMS, self.padded))
        edges = op.hop.edges
        native.recurrence_hop(
            format=state.format.code,
            start=edges["start"],
            end=edges["end"],
            indices=edges["indices"],
            edge_weight=edges["weight"],
            blocks=shape.blocks,
            keep=op.hop.keep,
            gain=op.hop.gain,
            weight=op.weight,
            own=op.own,
            rows=[state.stored[at].rows for at in read],
            steps=[state.stored[at].steps for at in read],
            factor=_floats(inverse),
            mix=_floats(mix[read]),
            out=out.rows,
            out_steps=out.steps,
            sums=sums,
            threads=op.hop.threads,
        )
        arithmetic = _ARITHMETIC * np.sqrt(np.square(inverse * lengths[-1]) + np.square(size).sum(axis=0))
        self._append(out, mapped)
        image = np.zeros((k + 2, self.padded))
        image[: k + 1], image[k + 1] = unread - mix, 1.0
        state.image.append(image * state.nu * state.live)
        self._measured(shift, op.reduced(sums), inverse, np.square(arithmetic), unread)

    def _output(self, format: RowFormat, number: int) -> tuple[StoredRows, bool]:
        """Where iterate `number` is written, row after row, and whether that is a file."""
        op, n, blocks = self.op, len(self.op.weight), self.shape.blocks
        mapped = op.files.iterate(number, format, n, blocks) if op.files is not None else None
        return (op.buffers.take(format, n, blocks), False) if mapped is None else (mapped, True)

    def _append(self, out: StoredRows, mapped: bool) -> None:
        """The next iterate. What is gathered is in memory: of those in files, a copy of the last."""
        state = self.state
        assert state is not None
        if mapped:
            last = len(state.stored) - 1
            if last in state.mapped:
                copy, state.stored[last] = state.stored[last], state.mapped[last]
            else:
                copy = self.op.buffers.take(state.format, len(self.op.weight), self.shape.blocks)
            np.copyto(copy.rows, out.rows)
            np.copyto(copy.steps, out.steps)
            state.mapped[last + 1] = out
            out = copy
        state.stored.append(out)

    def _measured(self, shift: Doubles | float, sums: Doubles, inverse: Doubles, arithmetic: Doubles, unread: Doubles) -> None:
        """a_k, b_k and p_{k+1} from what the hop has added up; `unread` [k + 1, width] is what it left out of s_0 .. s_k."""
        state = self.state
        assert state is not None
        k = len(state.basis) - 1
        low, high = self.op.series.low - shift, self.op.series.high - shift
        parts = np.zeros((k + 2, self.padded))
        for row, part in zip(unread, state.parts, strict=True):
            parts[: len(part)] -= row * part
        before = np.square(parts[:k]).sum(axis=0)
        measured = (sums[0] - (parts[:k] * state.parts[k][:k]).sum(axis=0)) * inverse
        along = np.clip(measured, low, high)
        square = sums[1] - along**2 - before
        # What rounding has left undetermined is no sign of an exhausted space: the column may need a wider format.
        spoilt = ((sums[2] > 0) & (square < 4 * sums[2])) | (np.abs(along - measured) > 1e-6)
        # s_k has parts along earlier p_j, and p_k the rounding of s_k: that much of what was measured is not a_k.
        others = np.sqrt(np.square(state.parts[k][:k]).sum(axis=0))
        spoilt |= others * inverse * state.rounding[-1] * np.sqrt(self.alike) > _UNCERTAIN
        state.known[spoilt] = np.minimum(state.known[spoilt], k)
        b = np.sqrt(np.clip(square, sums[2], (0.5 * (high - low)) ** 2))
        finished = b <= _FINISHED
        b[finished] = 0.0
        applied = np.zeros((k + 2, self.padded))
        applied[k + 1] = 1.0
        applied[: k + 1] += shift * state.basis[k]
        if k:
            applied[:k] += state.b[-1] * state.basis[k - 1]
        applied[: k + 1] += unread
        state.applied, state.unread = applied, unread
        parts[k], parts[k + 1] = along, b
        state.parts.append(parts)
        following = np.zeros((k + 2, self.padded))
        following[k + 1] = 1.0
        following[: k + 1] -= along * state.basis[k]
        following[: k + 1] += unread
        state.a.append(np.where(state.live, shift + along, 0.0))
        state.b.append(b)
        state.lengths.append(np.sqrt(sums[1]))
        state.losses.append(sums[2] + arithmetic)
        # S s_l was taken from s_{l+1}, so the rounding of that is in S p_k too.
        lost = state.losses[k + 1] + sum(
            np.square(state.basis[k][at] * state.parts[at][at]) * state.losses[at + 1] for at in range(k)
        )
        state.nu, state.epsilon = b, along
        state.live = state.live & ~finished
        inverse = _inverse(b)
        state.basis.append(following * inverse)
        state.rounding.append(np.sqrt(lost) * inverse)
        ratio = np.sqrt(sums[3] / np.where(sums[1] > 0, sums[1], 1.0)) if self.op.own is not None else np.ones(self.padded)
        state.sizes.append(ratio)

    def estimate(self, tolerance: float) -> Accuracy:
        """After the hops so far."""
        state, width = self.state, self.shape.width
        assert state is not None
        a, b, sizes = (np.array(each)[:, :width] for each in (state.a, state.b, state.sizes))
        known = state.known[:width]
        after = np.arange(len(a))[:, None] >= known  # nothing is known there: as if eigenvalues were anywhere
        low, high = self.op.series.low, self.op.series.high
        a, b = np.where(after, 0.5 * (low + high), a), np.where(after, 0.25 * (high - low), b)
        found = estimate(self.op.series, a, b, sizes, tolerance, self.op.hop.threads)
        used = np.arange(len(sizes))[:, None] <= known
        unused = np.sqrt(np.square(np.where(used, 0.0, found.coefficients) * sizes).sum(axis=0))
        found = replace(found, coefficients=np.where(used, found.coefficients, 0.0))
        active = self.scale[:width] > 0
        lost = np.square(_CARRIED * np.array(state.rounding)[:, :width])
        carried, settled = ((lost * each).sum(axis=0) for each in self._carried(found.coefficients, a, b, sizes, active))
        # J has seen what rounding added to the stationary part, and f may leave more of that than of the column.
        norm = np.sqrt(np.maximum(np.square(found.norm) - settled, np.square(self.op.series.resolved * sizes[0])))
        determined = np.isfinite(found.truncation)
        truncation = np.where(determined, found.truncation, 0.0) * (found.norm / np.maximum(norm, 1e-300))
        found = replace(found, norm=norm, truncation=np.where(determined, truncation, np.inf))
        rounding = np.sqrt(carried + settled) / np.maximum(found.norm, 1e-300)
        rounding[~determined | (unused > _NEGLIGIBLE * tolerance * norm)] = np.inf
        return Accuracy(found, np.where(active, rounding, 0.0), active)

    def _carried(
        self, coefficients: Doubles, a: Doubles, b: Doubles, sizes: Doubles, active: NDArray[np.bool_]
    ) -> tuple[Doubles, Doubles]:
        """‖g_j(S) δ‖² of an error δ of norm 1 in p_j that is random, or like the column, each [m + 1, width].

        A random δ has the spectrum of an average column; and a part in the stationary or leading eigenvector, which columns may
        not have: the second result.
        """
        m, width = a.shape
        nodes, shares = _spectrum(a, b, active, self.op.series)
        count = len(nodes)
        diagonal, off_diagonal = np.zeros((m + 2 + count, width)), np.zeros((m + 1 + count, width))
        diagonal[:m], off_diagonal[:m] = a, b
        diagonal[m + 1 : -1], diagonal[-1] = nodes[:, None], self.op.series.high
        first = np.zeros_like(diagonal)
        first[0], first[m + 1 : -1], first[-1] = 1.0, np.sqrt(shares)[:, None], 1.0
        squares = np.square(amplification(coefficients, a, b, diagonal, off_diagonal, first))
        like = (squares[:, : m + 1] * np.square(sizes)).sum(axis=1)
        random = squares[:, m + 1 : -1].sum(axis=1) * np.square(sizes).mean()
        return np.maximum(like, random), self.op.leading * self.alike[:width] * squares[:, -1]

    def next_shift(self) -> Doubles:
        """A guess of a_k for each column: the mean of a_{k-1} over columns, as far as that is stable.

        An error e of a_{k-1} leaves p_k with a part e/b along p_{k-1}, from which what is measured as a_k has the error
        (a_{k-1} - σ_{k-1})(a_{k-1} - σ_k) e/b². The guess keeps that below e/4.
        """
        state = self.state
        assert state is not None
        last = state.a[-1]
        running = state.live & (self.scale > 0)
        mean = float(last[running].mean()) if running.any() else 0.0
        reach = 0.25 * np.square(state.b[-1]) / np.maximum(np.abs(state.epsilon), 1e-30)
        return self.op.shared(last + np.clip(mean - last, -reach, reach))

    def norms(self, found: Estimate) -> Doubles:
        """Of each column of f(S) X in the caller's norm: without the stationary part, and with it; [2, width]."""
        width, op = self.shape.width, self.op
        rest = found.norm * (np.sqrt(self._start_square()) * _inverse(self.scale))[:width]
        settled = self.mean[:width] * (op.stationary or 0.0) * np.sqrt(op.own_total)
        return np.stack([rest, np.hypot(rest, settled)])

    def finish(self, coefficients: Doubles, result: Floats, first: int = 0) -> None:
        """Write f(S) x into the tile's columns of a result that begins with column `first`."""
        state, op, shape = self.state, self.op, self.shape
        assert state is not None
        count = len(coefficients)
        mix = np.zeros((count, self.padded))
        for k, (row, basis) in enumerate(zip(coefficients, state.basis, strict=False)):
            mix[: k + 1] += self._wide(row) * basis
        mix *= np.sqrt(self._start_square()) * _inverse(self.scale)
        offset = self.mean * (op.stationary or 0.0)
        native.combine_rows(
            format=state.format.code,
            blocks=shape.blocks,
            width=shape.width,
            factor=op.target,
            weight=op.weight,
            rows=[each.rows for each in state.stored[:count]],
            steps=[each.steps for each in state.stored[:count]],
            mix=_floats(mix),
            offset=_floats(offset),
            result=result,
            column0=shape.column - first,
            threads=op.hop.threads,
        )

    def release(self) -> None:
        """Give the memory of the iterates to the next tile."""
        if self.state is not None:
            files = [id(each) for each in self.state.mapped.values()]
            own = [each for each in self.state.stored if id(each) not in files]
            self.op.buffers.give(self.state.format, self.shape.blocks, own)
            self.state = None

    def _start_square(self) -> Doubles:
        """‖s_0‖² of each column: p_0 = s_0/‖s_0‖."""
        assert self.state is not None
        inverse = self.state.basis[0][0]
        return _inverse(inverse) ** 2


def _spectrum(a: Doubles, b: Doubles, active: NDArray[np.bool_], series: Series) -> tuple[Doubles, Doubles]:
    """Eigenvalues and their shares in an average column: Gauss quadratures of some columns, added up in narrow ranges."""
    columns = np.flatnonzero(active)
    columns = columns[:: max(1, len(columns) // _QUADRATURES)] if len(columns) else np.arange(1)
    matrices = np.zeros((len(columns), len(a), len(a)))
    at = np.arange(len(a))
    matrices[:, at, at] = a[:, columns].T
    matrices[:, at[1:], at[:-1]] = b[:-1, columns].T  # eigh reads the lower half
    values, vectors = np.linalg.eigh(matrices)
    shares = np.square(vectors[:, 0]).ravel() / len(columns)
    values = np.clip(values.ravel(), series.low, series.high)
    place = np.minimum((values - series.low) / (series.high - series.low) * _RANGES, _RANGES - 1).astype(np.int64)
    total, moment = (np.asarray(np.bincount(place, each, _RANGES), dtype=np.float64) for each in (shares, shares * values))
    some = total > 0
    return moment[some] / total[some], total[some]


def _inverse(values: Doubles) -> Doubles:
    return np.where(values > 0, 1 / np.where(values > 0, values, 1.0), 0.0)


def _floats(values: Doubles) -> Floats:
    """For a kernel: float32, at the start of a cache line."""
    out = aligned(*values.shape)
    out[:] = values
    return out
