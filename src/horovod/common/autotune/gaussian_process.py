"""Gaussian process regression in plain Python, for a few dozen points in at most two dimensions.

The kernel is Matern 5/2 with one length for each dimension; noise is added to the diagonal. Lengths and
noise are those of a small grid with the highest marginal likelihood (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, chapters 2, 4.2 and 5.4.1), in which the overall scale is the most
likely one in closed form. NumPy is no dependency of Horovod, and these matrices are tiny.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

Point = Sequence[float]
Matrix = list[list[float]]

LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)  # of the unit interval
NOISES = (1e-4, 0.003, 0.03, 0.1, 0.3, 0.6, 1.0)  # noise variance over signal variance
LEAST_NOISE = 1e-6  # keeps the matrix positive definite when a point was measured twice
# With few points many lengths explain the data. This prior (normal in the logarithm, mean 0.4,
# a factor of about 2.7 for one standard deviation) keeps them from running to an end of the grid.
USUAL_LENGTH = 0.4
# The grid is searched on at most so many points, which bounds the time when somebody asks for
# hundreds of samples; the fit itself uses all.
GRID_POINTS = 40


def kernel(a: Point, b: Point, lengths: Point) -> float:
    """Matern 5/2 correlation of two points."""
    squared = 0.0
    for x, y, length in zip(a, b, lengths, strict=True):
        squared += ((x - y) / length) ** 2
    distance = math.sqrt(5.0 * squared)
    return (1.0 + distance + distance * distance / 3.0) * math.exp(-distance)


def cholesky(matrix: Matrix) -> Matrix:
    """Lower triangle L with L L^T = matrix; row i has i + 1 entries.

    Raises:
        ValueError: the matrix is not positive definite.
    """
    rows: Matrix = []
    for i, line in enumerate(matrix):
        row: list[float] = []
        for j in range(i):
            row.append((line[j] - sum(map(mul, row, rows[j]))) / rows[j][j])
        rest = line[i] - sum(map(mul, row, row))
        if rest <= 0.0:
            raise ValueError(f"The matrix is not positive definite: pivot {i} is {rest}.")
        row.append(math.sqrt(rest))
        rows.append(row)
    return rows


def solve_lower(triangle: Matrix, right: Sequence[float]) -> list[float]:
    """Solves L x = right for x."""
    found: list[float] = []
    for row, value in zip(triangle, right, strict=True):
        found.append((value - sum(map(mul, row, found))) / row[-1])
    return found


def solve_upper(triangle: Matrix, right: Sequence[float]) -> list[float]:
    """Solves L^T x = right for x."""
    found = [0.0] * len(right)
    for i in reversed(range(len(right))):
        rest = right[i] - sum(triangle[k][i] * found[k] for k in range(i + 1, len(right)))
        found[i] = rest / triangle[i][i]
    return found


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Lengths by dimension, and noise variance over signal variance."""

    lengths: tuple[float, ...]
    noise: float


@dataclass(slots=True)
class _Factors:
    triangle: Matrix
    whitened: list[float]  # L^-1 y
    scale: float  # most likely signal variance
    log_likelihood: float


def correlations(points: Sequence[Point], lengths: Point) -> Matrix:
    """Correlation of each point with those before it: the lower triangle without its diagonal."""
    return [
        [kernel(point, other, lengths) for other in points[:i]] for i, point in enumerate(points)
    ]


def _factor(correlated: Matrix, values: Sequence[float], noise: float) -> _Factors:
    count = len(correlated)
    diagonal = 1.0 + max(noise, LEAST_NOISE)
    triangle = cholesky([[*row, diagonal] for row in correlated])
    whitened = solve_lower(triangle, values)
    scale = max(sum(map(mul, whitened, whitened)) / count, 1e-12)
    log_likelihood = -0.5 * count * math.log(scale) - sum(math.log(row[-1]) for row in triangle)
    return _Factors(triangle, whitened, scale, log_likelihood)


def noise_grid(most: float) -> tuple[float, ...]:
    """Noise ratios to try, none above `most`."""
    return (*(noise for noise in NOISES if noise < most), max(most, LEAST_NOISE))


def choose(points: Sequence[Point], values: Sequence[float], most_noise: float) -> Hyperparameters:
    """The hyperparameters of the grid with the highest marginal likelihood times prior.

    Args:
        points: coordinates, all with the same number of dimensions.
        values: with mean 0 and standard deviation 1.
        most_noise: largest noise variance over signal variance to consider.
    """
    if len(points) > GRID_POINTS:
        step = len(points) / GRID_POINTS
        kept = [int(i * step) for i in range(GRID_POINTS)]
        points, values = [points[i] for i in kept], [values[i] for i in kept]
    best, best_score = Hyperparameters((USUAL_LENGTH,) * len(points[0]), most_noise), -math.inf
    for lengths in itertools.product(LENGTHS, repeat=len(points[0])):
        prior = -0.5 * sum(math.log(length / USUAL_LENGTH) ** 2 for length in lengths)
        correlated = correlations(points, lengths)
        for noise in noise_grid(most_noise):
            score = _factor(correlated, values, noise).log_likelihood + prior
            if score > best_score:
                best, best_score = Hyperparameters(lengths, noise), score
    return best


class GaussianProcess:
    """A fitted process; `predict` gives mean and standard deviation in the units of the scores."""

    def __init__(self, points: Sequence[Point], scores: Sequence[float], most_noise: float) -> None:
        """Fits. At least one point; see `choose` for `most_noise`."""
        count = len(points)
        self._points = list(points)
        self._mean = sum(scores) / count
        variance = sum((score - self._mean) ** 2 for score in scores) / count
        self._deviation = math.sqrt(variance) or 1.0
        values = [(score - self._mean) / self._deviation for score in scores]
        chosen = self.hyperparameters = choose(points, values, most_noise)
        factors = _factor(correlations(points, chosen.lengths), values, chosen.noise)
        self._triangle = factors.triangle
        self._scale = factors.scale
        self._weights = solve_upper(factors.triangle, factors.whitened)

    def predict(self, point: Point) -> tuple[float, float]:
        """Mean and standard deviation of the score, noise not included, at `point`."""
        lengths = self.hyperparameters.lengths
        column = [kernel(point, known, lengths) for known in self._points]
        mean = sum(map(mul, column, self._weights))
        solved = solve_lower(self._triangle, column)
        variance = max(1.0 - sum(map(mul, solved, solved)), 0.0) * self._scale
        return self._mean + self._deviation * mean, self._deviation * math.sqrt(variance)
