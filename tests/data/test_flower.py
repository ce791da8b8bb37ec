import sys

import datasets
import numpy as np
import pytest
import torch

from idiolect.core.errors import InputError
from idiolect.data.datasets.dataset import Column, Source
from idiolect.data.partitions.flower import from_flower

WRITERS = ("ann", "bob", "cy")


def source(rows=300):
    y_R = np.random.default_rng(0).permutation(np.arange(rows) % 5)
    writer = Column(np.arange(rows) % 3, WRITERS)
    images, labels = torch.zeros(rows, 1, 1, 1, dtype=torch.uint8), torch.from_numpy(y_R)
    return Source("toy", images, labels, 5, tuple("abcde"), None, None, rows, {"writer": writer})


def rng(seed=0):
    return np.random.default_rng(seed)


class StandIn:
    """The members that the adapter uses of a partitioner, and rows that a test decides on."""

    def __init__(self, divide, partitions):
        self._dataset, self._divide, self.num_partitions = None, divide, partitions

    @property
    def dataset(self):
        return self._dataset

    @dataset.setter
    def dataset(self, value):
        if self._dataset is not None:
            raise ValueError("only once")
        self._dataset = value

    def load_partition(self, partition_id):
        return self._dataset.select(self._divide(self._dataset, partition_id))


def by_writer(dataset, k):
    assert isinstance(dataset, datasets.Dataset)
    return [i for i, name in enumerate(dataset["writer"]) if name == WRITERS[k]]


def by_label(dataset, k):
    return [i for i, label in enumerate(dataset["label"]) if label == k]


def test_the_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r'partition StandIn needs the package datasets: pip install "idiolect\[data'):
        from_flower(StandIn(by_writer, 3), source(), 3, rng())


def test_rows_labels_and_columns_reach_the_partitioner():
    toy = source()
    partitioner = StandIn(by_writer, 3)
    split = from_flower(partitioner, toy, 3, rng())
    for k, (train, test) in enumerate(zip(split.train, split.test, strict=True)):
        assert sorted([*train, *test]) == list(range(k, 300, 3))
        assert (len(train), len(test)) == (80, 20)
        assert train.dtype == np.int64
    labelled = from_flower(StandIn(by_label, 5), toy, None, rng(), test_fraction=0.5)
    assert [set(toy.y_R.numpy()[rows]) for rows in labelled.train] == [{c} for c in range(5)]
    assert [len(rows) for rows in labelled.test] == [30] * 5
    # the caller's partitioner has no data yet, and serves again
    assert partitioner.dataset is None
    again = from_flower(partitioner, toy, None, rng())
    assert all((a == b).all() for a, b in zip(again.train, split.train, strict=True))
    other = from_flower(partitioner, toy, None, rng(1))
    assert set(other.test[0]) != set(split.test[0])


def test_rows_stand_in_random_order_and_can_be_stratified():
    toy = source()
    split = from_flower(StandIn(by_writer, 3), toy, 3, rng(), 0.2, stratified=True)
    assert (np.diff(split.train[0]) < 0).mean() > 0.3
    label_K = [toy.y_R.numpy()[rows] for rows in split.test]
    whole = np.bincount(toy.y_R.numpy()[::3]) * 0.2
    assert np.abs(np.bincount(label_K[0], minlength=5) - whole).max() < 1


@pytest.mark.parametrize(
    ("divide", "partitions", "clients", "match"),
    [
        (by_writer, 3, 4, r"StandIn makes 3 partitions, but clients=4: take clients=3"),
        (
            lambda d, k: range(10 * k, 10 * k + 11),
            3,
            None,
            r"StandIn uses a sample of toy twice; take a partitioner whose",
        ),
        (lambda d, k: range(k), 4, None, r"partition 0 has 0 samples of toy; take fewer partitions"),
        (lambda d, k: range(k, 3 + k - k), 4, None, r"partition 2 has 1 samples of toy; take fewer partitions"),
        (lambda d, k: [999], 2, None, r"StandIn cannot divide toy \(.*\): give a new partitioner that fits these data"),
        (lambda d, k: [{}["hospital"]], 2, None, r"StandIn cannot divide toy \('hospital'\): give a new partitioner"),
    ],
)
def test_what_a_partitioner_may_not_do(divide, partitions, clients, match):
    with pytest.raises(InputError, match=match):
        from_flower(StandIn(divide, partitions), source(), clients, rng())


def test_a_partitioner_that_has_data_already():
    used = StandIn(by_writer, 3)
    used.dataset = datasets.Dataset.from_dict({"label": [0]})
    with pytest.raises(
        InputError, match=r"StandIn cannot divide toy \(only once\): give a new partitioner that fits these data"
    ):
        from_flower(used, source(), None, rng())


@pytest.mark.filterwarnings("default")  # what another library warns of is its own
def test_the_real_partitioners():
    real = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
    toy = source()
    y_R = toy.y_R.numpy()
    for partitioner, clients in (
        (real.IidPartitioner(7), 7),
        (real.DirichletPartitioner(6, "label", alpha=0.7, min_partition_size=5, seed=3), 6),
        (real.NaturalIdPartitioner("writer"), 3),
        (real.PathologicalPartitioner(5, "label", 2, class_assignment_mode="deterministic"), 5),
    ):
        split = from_flower(partitioner, toy, clients, rng())
        every = np.concatenate([*split.train, *split.test])
        assert len(split.train) == clients
        assert sorted(every) == list(range(300))
    assert {len(set(y_R[rows])) for rows in split.train} == {2}
    with pytest.raises(InputError, match=r"VerticalEvenPartitioner cannot divide toy \(Column 'row' does"):
        from_flower(real.VerticalEvenPartitioner(3), toy, None, rng())
    with pytest.raises(InputError, match=r"DirichletPartitioner cannot divide toy .*labels"):
        from_flower(real.DirichletPartitioner(6, "labels", alpha=0.7), toy, None, rng())
