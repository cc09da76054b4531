"""The Gaussian process against the textbook's formulas in NumPy."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from horovod.common.autotune import gaussian_process as gp

Points = list[tuple[float, float]]


def some_points(count: int, seed: int = 1) -> tuple[Points, list[float]]:
    source = random.Random(seed)
    points = [(source.random(), source.random()) for _ in range(count)]
    scores = [900 + 50 * math.sin(5 * x) - 80 * y + source.gauss(0, 3) for x, y in points]
    return points, scores


def matern(a: np.ndarray, b: np.ndarray, lengths: tuple[float, ...]) -> np.ndarray:
    scaled = (a[:, None, :] - b[None, :, :]) / np.array(lengths)
    r = np.sqrt((scaled**2).sum(-1))
    return (1 + math.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-math.sqrt(5) * r)


def test_cholesky_and_solvers_agree_with_numpy() -> None:
    source = np.random.default_rng(3)
    square = source.normal(size=(7, 7))
    matrix = square @ square.T + np.eye(7)
    right = source.normal(size=7)
    rows = gp.cholesky([list(matrix[i, : i + 1]) for i in range(7)])
    triangle = np.linalg.cholesky(matrix)
    for i, row in enumerate(rows):
        np.testing.assert_allclose(row, triangle[i, : i + 1], rtol=1e-12)
    np.testing.assert_allclose(gp.solve_lower(rows, right), np.linalg.solve(triangle, right))
    np.testing.assert_allclose(gp.solve_upper(rows, right), np.linalg.solve(triangle.T, right))


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(ValueError, match="not positive definite: pivot 1"):
        gp.cholesky([[1.0], [2.0, 1.0]])


@pytest.mark.parametrize("count", [1, 2, 9, 20])
def test_mean_and_deviation_are_those_of_the_formulas(count: int) -> None:
    points, scores = some_points(count)
    process = gp.GaussianProcess(points, scores, most_noise=0.8)
    chosen = process.hyperparameters
    x, y = np.array(points), np.array(scores)
    deviation = y.std() or 1.0
    values = (y - y.mean()) / deviation
    covariance = matern(x, x, chosen.lengths) + max(chosen.noise, gp.LEAST_NOISE) * np.eye(count)
    scale = max(values @ np.linalg.solve(covariance, values) / count, 1e-12)
    asked = np.array([(0.3, 0.4), (0.0, 1.0), points[0]])
    column = matern(asked, x, chosen.lengths)
    means = y.mean() + deviation * column @ np.linalg.solve(covariance, values)
    variances = scale * (1 - np.einsum("ij,ji->i", column, np.linalg.solve(covariance, column.T)))
    for point, mean, variance in zip(asked, means, variances, strict=True):
        found_mean, found_deviation = process.predict(tuple(point))
        assert found_mean == pytest.approx(mean, rel=1e-9)
        assert found_deviation == pytest.approx(deviation * math.sqrt(max(variance, 0)), abs=1e-5)


def test_the_hyperparameters_have_the_highest_likelihood_times_prior_of_the_grid() -> None:
    points, scores = some_points(12)
    x, values = np.array(points), (np.array(scores) - np.mean(scores)) / np.std(scores)

    def log_posterior(lengths: tuple[float, ...], noise: float) -> float:
        covariance = matern(x, x, lengths) + noise * np.eye(12)
        scale = values @ np.linalg.solve(covariance, values) / 12
        _, log_determinant = np.linalg.slogdet(scale * covariance)
        prior = sum(-0.5 * math.log(length / 0.4) ** 2 for length in lengths)
        return (
            -0.5 * (values @ np.linalg.solve(scale * covariance, values) + log_determinant) + prior
        )

    grid = [((a, b), noise) for a in gp.LENGTHS for b in gp.LENGTHS for noise in gp.noise_grid(0.8)]
    best = max(grid, key=lambda lengths_and_noise: log_posterior(*lengths_and_noise))
    chosen = gp.choose(points, list(values), most_noise=0.8)
    assert (chosen.lengths, chosen.noise) == best


@pytest.mark.parametrize("most", [0.0, 0.05, 0.8, 1.0])
def test_noise_is_never_assumed_to_be_above_the_knob(most: float) -> None:
    assert max(gp.noise_grid(most)) == max(most, gp.LEAST_NOISE)
    points = [(0.1 * i, 0.0) for i in range(10)]
    scores = [float(i % 2) for i in range(10)]  # pure noise
    assert gp.GaussianProcess(points, scores, most).hyperparameters.noise <= max(most, 1e-6)


def test_equal_scores_give_that_score_everywhere_and_no_doubt() -> None:
    process = gp.GaussianProcess([(0.0, 0.0), (1.0, 0.5)], [7.0, 7.0], 0.8)
    mean, deviation = process.predict((0.4, 0.9))
    assert mean == pytest.approx(7.0)
    assert deviation < 1e-4


def test_the_same_point_may_be_measured_twice_even_without_noise() -> None:
    process = gp.GaussianProcess([(0.5,), (0.5,), (0.1,)], [1.0, 2.0, 0.0], 0.0)
    assert process.predict((0.5,))[0] == pytest.approx(1.5, abs=0.01)


def test_hundreds_of_points_are_possible() -> None:
    points, scores = some_points(150)
    mean, deviation = gp.GaussianProcess(points, scores, 0.8).predict(points[3])
    assert mean == pytest.approx(scores[3], abs=12.0)
    assert deviation < 6.0
