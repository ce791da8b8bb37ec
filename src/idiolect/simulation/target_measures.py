"""What a client's predictions are compared with where its targets are numbers or several labels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from idiolect.core.evaluation_protocol import Threshold
from idiolect.core.tree import Tree
from idiolect.data.targets import Targets
from idiolect.simulation import errors_of_numbers, label_measures, thresholds

# N test samples, and after them validation samples, of one client; D numbers or labels


def of_predictions(
    predicted_N: Tensor, goal: Targets, groups: Tree, test_count: int, asked: Sequence[str], threshold: Threshold
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Predictions (N, D) as they are kept, the loss of each sample (N,), and measures by metric.

    Args:
        predicted_N: what ``predict`` returned.
        goal: the targets of the same samples.
        groups: which of the samples belong together (N,); () where each stands for itself.
        test_count: how many are test samples, which come first.
        asked: measures that the study asks for, of test samples.
        threshold: from which probability on a label is predicted of test samples.

    Raises:
        ValueError: predictions have another shape, or are no log-probabilities.
    """
    y_ND, names, n = goal.value_RD, goal.names, test_count
    if goal.task == "regression":
        value_ND, loss_N = errors_of_numbers.read(predicted_N, goal)
        test = errors_of_numbers.of_predictions(value_ND[:n], y_ND[:n], names)
        test |= errors_of_numbers.of_intervals(value_ND - y_ND, n, groups, names) if n < len(y_ND) else {}
        valid = errors_of_numbers.of_predictions(value_ND[n:], y_ND[n:])
    else:
        value_ND, loss_N = label_measures.read(predicted_N.double(), y_ND)
        threshold_L, at = thresholds.of_labels(threshold, value_ND[n:], y_ND[n:], names)
        test = label_measures.of_predictions(value_ND[:n], y_ND[:n], names, threshold_L)
        test |= label_measures.ranked(asked, value_ND[:n], y_ND[:n], names) | (at if test else {})
        valid = label_measures.of_predictions(value_ND[n:], y_ND[n:], names)
    return value_ND, loss_N, test | {f"validation_{k}": v for k, v in valid.items() if "[" not in k}
