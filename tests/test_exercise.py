"""Checks of exercises judge a prediction and keep the answer to themselves."""

import pytest

from hakmem_py.exercise import check


@pytest.mark.parametrize(
    ("prediction", "answer", "right"),
    [
        (None, 5, None),
        (5, 5, True),
        (4, 5, False),
        (0.3, 0.25, True),
        (0.4, 0.25, False),
        ("UCB1", "ucb1", True),
        ([1, 2], (1, 2), True),
        ("five", 5, None),
        (5, [1, 2], None),
    ],
)
def test_predictions_are_judged(prediction, answer, right):
    assert check(prediction, answer, tolerance=0.06).right is right


def test_a_wrong_prediction_gets_the_hint_and_not_the_answer():
    said = repr(check(3, 47, "Count the pulls again."))
    assert "Count the pulls again." in said
    assert "47" not in said
