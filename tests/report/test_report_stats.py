from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynaweb.stats import (
    COUNT,
    MEAN,
    PROPORTION,
    SCORE,
    TRIES,
    Estimate,
    Kind,
    discordance,
    estimate,
    mcnemar,
    mean,
    over_seeds,
    paired_difference,
    proportion,
    success_rate,
    t_quantile,
    wilson,
)
from dynaweb.worldmodels.fidelity import DECLARED, DRIFT, estimates, kind_of


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Published: Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_interval_matches_published_values(successes: int, n: int, low: float, high: float) -> None:
    estimate = wilson(successes, n)
    assert estimate.value == successes / n
    assert estimate.low == pytest.approx(low, abs=6e-5)
    assert estimate.high == pytest.approx(high, abs=6e-5)


def test_a_proportion_of_all_reaches_one_and_of_none_is_unknown() -> None:
    assert wilson(20, 20).high == 1.0
    assert proportion([]) == Estimate(None, None, None, 0)
    with pytest.raises(ValueError, match="between 0 and n=3"):
        wilson(4, 3)


def test_ungraded_episodes_are_counted_and_left_out() -> None:
    estimate = proportion([1.0, None, 0.0, 1.0, None])
    assert (estimate.value, estimate.n, estimate.missing) == (pytest.approx(2 / 3), 3, 2)


@pytest.mark.parametrize(
    ("df", "quantile"),
    [(1, 12.7062047), (2, 4.3026527), (4, 2.7764451), (9, 2.2621572), (30, 2.0422725), (1000, 1.9623391)],
)
def test_t_quantile_matches_the_tables(df: int, quantile: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(quantile, rel=1e-7)


def test_mean_with_t_interval() -> None:
    estimate = mean([2.0, 4.0, None, 6.0])
    half = 4.3026527 * 2.0 / math.sqrt(3)
    assert (estimate.value, estimate.n, estimate.missing) == (4.0, 3, 1)
    assert estimate.low == pytest.approx(4.0 - half, rel=1e-6)
    assert estimate.high == pytest.approx(4.0 + half, rel=1e-6)
    assert mean([5.0]) == Estimate(5.0, None, None, 1)
    assert mean([]) == Estimate(None, None, None, 0)


@pytest.mark.parametrize(("gained", "lost", "p"), [(0, 0, 1.0), (5, 5, 1.0), (10, 0, 2 / 1024), (8, 2, 0.109375)])
def test_mcnemar_is_the_exact_binomial_test(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == pytest.approx(p)
    assert mcnemar(lost, gained) == mcnemar(gained, lost)


def test_paired_difference_counts_and_is_the_same_for_the_same_seed() -> None:
    first = [[1.0, 0.0, 0.0, 1.0, None, 0.0]]
    second = [[1.0, 1.0, 1.0, 0.0, 1.0, None]]
    found = paired_difference(first, second, seed=3)
    assert (found.difference.value, found.difference.n, found.difference.missing) == (0.25, 4, 2)
    assert (found.gained, found.lost, found.seeds) == (2, 1, 1)
    assert found == paired_difference(first, second, seed=3)
    assert not found.is_significant


def test_bootstrap_interval_agrees_with_the_normal_one_on_many_episodes() -> None:
    rng = random.Random(1)
    first = [float(rng.random() < 0.7) for _ in range(2000)]
    second = [max(a, float(rng.random() < 0.3)) for a in first]
    found = paired_difference([first], [second])
    d = [b - a for a, b in zip(first, second, strict=True)]
    centre = sum(d) / len(d)
    half = 1.96 * math.sqrt(sum((x - centre) ** 2 for x in d)) / len(d)
    assert found.difference.low == pytest.approx(centre - half, abs=0.001)
    assert found.difference.high == pytest.approx(centre + half, abs=0.001)
    assert found.is_significant


def test_an_interval_is_the_same_with_every_version_of_numpy() -> None:
    # NumPy keeps the draws of RandomState for good, and those of its newer generators only within a version.
    first = [[float((at * 7 + seed) % 3 == 0) for at in range(60)] for seed in range(3)]
    second = [[float((at * 5 + seed) % 2 == 0) for at in range(60)] for seed in range(3)]
    found = paired_difference(first, second, seed=2**40, resamples=41).difference
    assert (found.low, found.high) == (pytest.approx(19 / 180), pytest.approx(52 / 180))


def test_seeds_that_disagree_widen_the_interval() -> None:
    first = [[0.0] * 100] * 4
    agree = paired_difference(first, [[1.0] * 20 + [0.0] * 80] * 4).difference
    disagree = paired_difference(first, [[1.0] * k + [0.0] * (100 - k) for k in (0, 0, 40, 40)]).difference
    assert agree.value == disagree.value == 0.2
    assert agree.low is not None and agree.high is not None
    assert disagree.low is not None and disagree.high is not None
    assert disagree.high - disagree.low > 2 * (agree.high - agree.low)


def test_one_control_is_paired_with_every_seed() -> None:
    found = paired_difference([[0.0, 1.0]], [[1.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    assert (found.seeds, found.gained, found.lost, found.difference.n) == (3, 2, 0, 6)


def test_arms_that_cannot_be_paired_are_refused() -> None:
    with pytest.raises(ValueError, match="3 and 2 episodes"):
        paired_difference([[0.0] * 3], [[0.0] * 2])
    with pytest.raises(ValueError, match="2 seeds and the other 3"):
        paired_difference([[0.0]] * 2, [[0.0]] * 3)


def test_success_rate_over_seeds_is_never_narrower_than_over_episodes() -> None:
    alike = [[1.0] * 80 + [0.0] * 20] * 3
    assert success_rate(alike) == proportion([x for outcomes in alike for x in outcomes])
    apart = success_rate([[1.0] * k + [0.0] * (100 - k) for k in (60, 80, 100)])
    assert apart.value == pytest.approx(0.8)
    assert apart.n == 300
    assert apart.low == pytest.approx(0.8 - 4.3026527 * 0.2 / math.sqrt(3), abs=1e-6)
    assert success_rate([[1.0, None]]).n == 1


def test_no_number_without_its_count() -> None:
    assert str(wilson(3, 4)) == "0.750 [0.301, 0.954] n=4"
    assert mean([2.5]).text(1) == "2.5 [-] n=1"
    assert proportion([None]).text() == "- n=0"
    assert Estimate(0.125, -0.01, 0.2, 9).text(1, signed=True, scale=100) == "+12.5 [-1.0, +20.0] n=9"


KINDS = (PROPORTION, SCORE, COUNT, TRIES, MEAN)


def values_of(kind: Kind) -> st.SearchStrategy[float]:
    if kind.binary:
        return st.sampled_from([0.0, 1.0])
    low, high = kind.low if kind.low is not None else -50.0, kind.high if kind.high is not None else 50.0
    return st.sampled_from([low, high]) | st.floats(low, high)


@given(st.data())
def test_no_interval_leaves_the_bounds_of_its_kind_or_is_a_point(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    by_seed = data.draw(st.lists(st.lists(values_of(kind), min_size=1, max_size=6), min_size=1, max_size=4))
    found = over_seeds(kind, by_seed)
    assert found.n == sum(map(len, by_seed))
    assert found.value is not None
    if found.low is None or found.high is None:
        assert not kind.binary
        return
    assert found.low < found.high
    assert found.low - 1e-9 <= found.value <= found.high + 1e-9
    assert kind.low is None or found.low >= kind.low
    assert kind.high is None or found.high <= kind.high


def test_equal_values_make_a_proportion_only_where_the_measure_is_one() -> None:
    probes = [{"exact": 0.0, "attempts": 1.0, "tokens": 0.0, "role_f1": 0.424}] * 4
    found = {name: str(one) for name, one in estimates(probes).items()}
    assert found["exact"] == "0.000 [0.000, 0.490] n=4"
    assert found["attempts"] == "1.000 [-] n=4"
    assert found["tokens"] == "0.000 [-] n=4"
    assert found["role_f1"] == "0.424 [-] n=4"
    apart = estimates([{"tokens": 3.0, "attempts": 1.0}, {"tokens": 389.0, "attempts": 2.0}])
    assert (apart["tokens"].low, apart["attempts"].low) == (0.0, 1.0)


def test_two_seeds_with_the_same_share_are_no_certainty() -> None:
    once, twice = over_seeds(PROPORTION, [[0.0] * 4]), over_seeds(PROPORTION, [[0.0] * 4] * 2)
    assert (once, twice) == (wilson(0, 4), wilson(0, 8))
    assert over_seeds(PROPORTION, [[1.0, 1.0, 1.0, 0.0]] * 2) == wilson(6, 8)
    apart = over_seeds(PROPORTION, [[0.0] * 100, [1.0] * 100])
    assert (apart.low, apart.value, apart.high, apart.n) == (0.0, 0.5, 1.0, 200)
    assert over_seeds(SCORE, [[0.4], [0.4]]) == Estimate(0.4, None, None, 2)


def test_every_declared_measure_has_the_kind_of_its_values() -> None:
    kinds = {name: kind_of(name) for name in (*DECLARED, *DRIFT, "rules")}
    assert MEAN not in kinds.values()
    assert kinds["tokens"] is COUNT and kinds["attempts"] is TRIES and kinds["alive"] is PROPORTION
    assert kind_of("seen_url") is PROPORTION and kind_of("unheard of") is MEAN
    with pytest.raises(ValueError, match=r"0\.5 is no value of a proportion"):
        estimate(PROPORTION, [1.0, 0.5])
    with pytest.raises(ValueError, match="-1 is no value of a count"):
        estimate(COUNT, [-1])


@pytest.mark.parametrize("n", [1, 2, 6, 108])
def test_pairs_that_all_agree_leave_room_for_those_that_would_not(n: int) -> None:
    same = paired_difference([[1.0] * n], [[1.0] * n]).difference
    bound = wilson(0, n).high
    assert (same.value, same.low, same.high) == (0.0, pytest.approx(-bound), pytest.approx(bound))
    gained = paired_difference([[0.0] * n], [[1.0] * n])
    assert gained.difference.high == 1.0
    assert gained.difference.low == pytest.approx(1 - 2 * bound)
    # Two pairs that both gain (p = 0.5) show nothing; a hundred do.
    assert gained.is_significant == (n > 4)
    lost = paired_difference([[1.0] * n], [[0.0] * n]).difference
    assert (lost.low, lost.high) == (-1.0, pytest.approx(2 * bound - 1))


def test_equal_differences_of_scores_have_no_interval() -> None:
    found = paired_difference([[0.25, 0.5]], [[0.5, 0.75]])
    assert found.difference == Estimate(0.25, None, None, 2)
    assert not found.is_significant


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_the_interval_of_discordant_pairs_holds_their_difference(gained: int, lost: int, tied: int) -> None:
    n = gained + lost + tied
    if not n:
        return
    low, high = discordance(gained, lost, n)
    assert -1 <= low < high <= 1
    assert low - 1e-9 <= (gained - lost) / n <= high + 1e-9
    assert discordance(lost, gained, n) == (pytest.approx(-high), pytest.approx(-low))


def test_the_interval_of_discordant_pairs_agrees_with_the_bootstrap_where_both_hold() -> None:
    first, second = [0.0] * 300 + [1.0] * 700, [1.0] * 180 + [0.0] * 120 + [1.0] * 610 + [0.0] * 90
    found = paired_difference([first], [second]).difference
    low, high = discordance(180, 90, 1000)
    assert (found.low, found.high) == (pytest.approx(low, abs=0.004), pytest.approx(high, abs=0.004))
