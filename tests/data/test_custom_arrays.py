import logging
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.core.errors import InputError
from idiolect.data.custom import duplicates, from_arrays

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 5, 7)).astype(np.uint8)
COLOUR = RNG.integers(0, 256, (6, 5, 7, 3)).astype(np.uint8)
Y = [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("kind", [lambda x: x, torch.from_numpy, lambda x: x[:]])
@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (GREY, GREY[:, None]),
        (GREY[:, None], GREY[:, None]),
        (GREY[..., None], GREY[:, None]),
        (COLOUR, np.moveaxis(COLOUR, 3, 1)),
        (np.ascontiguousarray(np.moveaxis(COLOUR, 3, 1)), np.moveaxis(COLOUR, 3, 1)),
    ],
)
def test_images_of_every_order_of_axes(kind, x, expected):
    source = from_arrays(kind(x), Y)
    assert source.x_R.dtype == torch.uint8
    assert (source.x_R.numpy() == expected).all()
    assert source.y_R.tolist() == Y
    assert source.y_R.dtype == torch.int64
    assert (source.classes, source.class_names, source.train_rows) == (3, ("0", "1", "2"), 6)
    assert (source.mean, source.std, source.client_column, dict(source.columns)) == (None, None, None, {})


def test_numbers_may_have_gaps_in_a_table_and_are_float32():
    x = np.array([[1, np.nan], [2, 3.5]])
    source = from_arrays(x, ["b", "a"], name="mine")
    assert source.x_R.dtype == torch.float32
    np.testing.assert_array_equal(source.x_R.numpy(), x.astype(np.float32))
    assert source.y_R.tolist() == [1, 0]
    assert (source.name, source.class_names) == ("mine", ("a", "b"))


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, bool, np.float16])
def test_small_whole_numbers_in_rows_are_a_table(dtype):
    x = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    source = from_arrays(x, [0, 1])
    assert source.x_R.dtype == torch.float32
    assert (source.x_R.numpy() == x).all()


@pytest.mark.parametrize("split", [False, True])
def test_numbers_that_float32_would_merge_keep_their_distances(split, caplog):
    x = np.array([[100_000_000.0, 5], [100_000_001, 6], [100_000_002, 7], [100_000_007, 8]])
    with caplog.at_level(logging.INFO):
        source = from_arrays(x[:2], [0, 1], test=(x[2:], [0, 1])) if split else from_arrays(x, [0, 1, 0, 1])
    found = source.x_R.numpy()
    assert (found[:, 0] - found[0, 0]).tolist() == [0, 1, 2, 7]
    assert found[:, 1].tolist() == [5, 6, 7, 8]
    assert "whose median was subtracted, because 32 bits cannot tell their numbers apart: 0" in caplog.text


@pytest.mark.parametrize(("dtype", "largest", "stored"), [
    (np.int16, 9, torch.int16), (np.int64, 9, torch.int16), (np.uint16, 40_000, torch.int32),
    (np.int32, 70_000, torch.int32),
])  # fmt: skip
@pytest.mark.parametrize("split", [False, True])
def test_whole_numbers_of_more_bits_are_ids_and_stay_so(dtype, largest, stored, split, caplog):
    x = np.array([[0, 3, 3], [5, 1, 0], [2, 2, 2], [7, 8, largest]], dtype)
    source = from_arrays(x[:2], [0, 1], test=(x[2:], [0, 1])) if split else from_arrays(x, [0, 1, 0, 1])
    assert source.x_R.dtype == stored
    assert source.x_R.tolist() == x.tolist()
    assert source.sizes == largest + 1
    assert source.encodings == ()
    assert "x holds whole numbers, which are taken as ids; give amounts as floating-point numbers" in caplog.text


def test_several_arrays_by_name():
    image, words = GREY[:, :, :], np.arange(len(GREY) * 2).reshape(-1, 2)
    x = {"image": image, "words": words, "ward": np.arange(len(GREY)), "age": np.linspace(0, 1, len(GREY))}
    source = from_arrays(x, Y)
    assert list(source.x_R) == list(x)
    assert source.x_R["image"].dtype == torch.uint8
    assert source.x_R["image"].shape == (len(GREY), 1, *GREY.shape[1:])
    assert source.x_R["words"].tolist() == words.tolist()
    assert source.x_R["age"].dtype == torch.float32
    assert source.sizes == {"words": int(words.max()) + 1, "ward": len(GREY)}
    assert (source.mean, source.std, source.encodings) == (None, None, ())


def test_columns_of_one_number_and_of_gaps_stay():
    x = np.array([[0.1, np.nan, 20230101], [0.1, np.nan, 20230101]])
    np.testing.assert_array_equal(from_arrays(x, [0, 1]).x_R.numpy(), x.astype(np.float32))


def test_tensors_of_16_bits_are_read():
    x = torch.tensor([[0.5, 2], [3, 4]], dtype=torch.bfloat16, requires_grad=True)
    source = from_arrays(x, torch.tensor([1.0, 0], dtype=torch.bfloat16))
    assert source.x_R.tolist() == [[0.5, 2], [3, 4]]
    assert source.y_R.tolist() == [1, 0]


def test_float_images_get_their_channels_in_front_and_others_stay():
    x = RNG.normal(size=(4, 5, 7, 3)).astype(np.float32)
    assert (from_arrays(x, [0, 1, 0, 1]).x_R.numpy() == np.moveaxis(x, 3, 1)).all()
    x = RNG.normal(size=(4, 5, 7)).astype(np.float32)
    assert (from_arrays(x, [0, 1, 0, 1]).x_R.numpy() == x).all()


def test_labels_sort_by_number_and_need_not_be_0_to_n():
    source = from_arrays(GREY, [10, 9, 100, 9, 9, 10])
    assert source.class_names == ("9", "10", "100")
    assert source.y_R.tolist() == [1, 0, 2, 0, 0, 1]
    assert from_arrays(GREY, np.array([1.0, 0, 0, 1, 1, 0])).class_names == ("0", "1")
    assert from_arrays(GREY, np.array([True, False] * 3)).class_names == ("False", "True")


def test_class_names_say_what_numbers_mean_and_keep_classes_that_do_not_occur():
    source = from_arrays(GREY, [2, 1, 2, 1, 1, 2], class_names=("zero", "one", "two"))
    assert (source.classes, source.class_names) == (3, ("zero", "one", "two"))
    assert source.y_R.tolist() == [2, 1, 2, 1, 1, 2]
    source = from_arrays(GREY, ["sick", "well"] * 3, class_names=("well", "sick"))
    assert source.y_R.tolist() == [1, 0] * 3


def test_clients_and_an_official_test_split():
    source = from_arrays(GREY[:4], Y[:4], clients=["b", "a", "b", "c"], test=(GREY[4:], Y[4:], ["a", "d"]))
    assert (source.x_R.numpy() == GREY[:, None]).all()
    assert source.train_rows == 4
    assert source.client_column == "client"
    assert source.columns["client"].names == ("a", "b", "c", "d")
    assert source.columns["client"].code_R.tolist() == [1, 0, 1, 2, 0, 3]
    source = from_arrays(GREY, Y, clients=np.array([10, 9, 10, 9, 2, 2]))
    assert source.columns["client"].names == ("2", "9", "10")
    assert from_arrays(GREY[:4], Y[:4], test=(GREY[4:], Y[4:])).train_rows == 4


def test_arrays_that_cannot_be_written_are_copied():
    x = GREY.copy()
    x.flags.writeable = False
    assert (from_arrays(x, Y).x_R.numpy() == GREY[:, None]).all()


def with_nan(x):
    x = x.astype(np.float32)
    x[(2, *[0] * (x.ndim - 1))] = np.nan
    return x


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (GREY, Y[:5], {}, "y has 5 values for 6 rows of x: give one value per row"),
        (GREY, Y, {"clients": [1, 2]}, "clients has 2 values for 6 rows"),
        (GREY, np.eye(6), {}, r"y has the shape \(6, 6\): .*y.argmax\(axis=1\)"),
        (GREY, [0.0, 1, np.nan, 0, 1, 1], {}, r"y is missing in 1 of 6 rows \(the first is row 2"),
        (GREY, ["a", "b", np.nan, "a", "b", "b"], {}, r"y is missing in 1 of 6 rows \(the first is row 2"),
        (
            GREY,
            Y,
            {"clients": ["a", None, "b", None, "a", "a"]},
            "clients is missing in 2 of 6 rows .the first is row 1",
        ),
        (GREY, [1] * 6, {}, r"y has only one class \(1\)"),
        (with_nan(GREY), Y, {}, r"x holds a number that is not finite \(row 2"),
        (np.full((6, 2), np.inf), Y, {}, r"x holds an infinite number \(row 0"),
        (GREY.astype(np.int64), Y, {}, "x holds int64 of shape .*: give images as uint8"),
        (
            [[1, -2], [3, 4]],
            [0, 1],
            {},
            "x holds whole numbers, which are ids from 0 .*one is -2: give amounts as float",
        ),
        (
            [[1, 2], [3, 10**9]],
            [0, 1],
            {},
            "which are ids from 0 to 16,777,215, and one is 1,000,000,000: give amounts",
        ),
        ({}, [0, 1], {}, "give x as a dict with the same names, at least one"),
        ({"a b": [[1.0]]}, [0], {}, "x has the name 'a b': give names of the network's arguments"),
        ({"a": [[1.0]], "b": [[1.0], [2.0]]}, [0], {}, r"x\['b'\] has 2 rows, and x\['a'\] 1: give as many"),
        ({"a": ["one", "two"]}, [0, 1], {}, r"x\['a'\] has texts: give their ids"),
        (
            {"a": [[1.0], [2.0]]},
            [0, 1],
            {"test": ({"b": [[1.0]]}, [0])},
            "x and x of test differ: give x of test as a dict",
        ),
        (np.array([["a"]] * 6), Y, {}, "x has texts of shape .*: give one text per row"),
        (np.zeros(6), Y, {}, r"x has the shape \(6,\)"),
        (np.zeros((0, 3)), [], {}, r"x has the shape \(0, 3\)"),
        (np.zeros((6, 5, 7, 4), np.uint8), Y, {}, "has no axis of 1 or 3 channels: give grey images as"),
        (np.zeros((6, 3, 7, 3), np.uint8), Y, {}, "has 1 or 3 at both ends: give grey images as"),
        (np.zeros((6, 3, 7, 7, 3), np.uint8), Y, {}, "has no axis of 1 or 3 channels"),
        (GREY, Y, {"class_names": ("a", "b")}, "y holds 0, 1, 2, which 2 class_names .a, b. do not cover"),
        (GREY, Y, {"class_names": ("a", "b", "a")}, "give each class one name"),
        (GREY, Y, {"test": (GREY,)}, r"test has 1 parts: give \(x, y\)"),
        (GREY, Y, {"test": 5}, r"test is a int: give \(x, y\)"),
        (
            [[1, 2], [3]],
            [0, 1],
            {},
            r"x cannot be read as an array \(.*\): give a NumPy array.* rows all have the same length",
        ),
        ([[1], [3]], [[0], [1, 2]], {}, "y cannot be read as an array"),
        (torch.eye(2).to_sparse(), [0, 1], {}, "x cannot be read as an array .*a dense tensor"),
        (GREY, Y, {"test": (GREY, Y), "clients": Y}, r"test has 2 parts: give \(x, y\), and its clients"),
        (GREY, Y, {"test": (COLOUR, Y)}, "x and x of test differ .uint8 .*: give both the same type"),
        (np.zeros((1001, 2)), np.arange(1001), {}, "y has 1001 classes, more than 1000: is it an identifier"),
        (np.zeros((30, 2)), np.full(30, 1.5), {"task": "regression"}, "y is 1.5 in all rows: give a column"),
        (np.zeros((3, 2)), np.ones((3, 2)) / 7, {"class_names": "ab"}, "y has 2 columns and class_names 2 names"),
        (np.zeros((3, 2)), np.eye(3) * 2, {"task": "classification"}, "has 3 columns, and classes are in one"),
        (np.zeros((3, 2)), np.array([[1.0, np.inf], [2, 3], [3, 4]]), {}, r"y\[1\] is infinite in 1 of 3 rows"),
        (np.zeros((3, 2)), np.array([[1.0, np.nan], [2, 3], [3, 4]]), {}, r"y\[1\] is missing in 1 of 3 rows"),
    ],
)
def test_what_does_not_fit_is_said(x, y, options, message):
    with pytest.raises(InputError, match=message):
        from_arrays(x, y, **options)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12))
def test_duplicates_by_brute_force(rows):
    content = torch.tensor([[c, -c, 0.5] for c, _ in rows], dtype=torch.float32)
    clients = np.array([k for _, k in rows])
    shared = [any(a == b and j != k for b, k in rows) for a, j in rows]
    found = duplicates(content, clients)
    assert found.rows == sum(shared)
    if found.pair is None:
        assert not any(shared)
    else:
        first, second = ({c for c, k in rows if k == client} for client in found.pair)
        assert found.pair[0] != found.pair[1]
        assert first & second


def test_duplicates_within_one_client_are_none_and_the_last_bit_counts():
    x = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    assert duplicates(x, np.zeros(4, np.int64)) == (0, None)
    x[2:, 0, 1, 1] = 1
    assert duplicates(x, np.array([0, 0, 1, 1])) == (0, None)
    assert duplicates(x, np.array([5, 7, 1, 1])) == (2, (5, 7))


def test_duplicates_of_many_images_take_no_time():
    x = torch.from_numpy(np.arange(20_000 * 784, dtype=np.uint32).view(np.uint8).reshape(20_000, -1))
    x[19_999] = x[0]
    start = time.process_time()
    assert duplicates(x, np.arange(20_000) % 10) == (2, (0, 9))
    assert time.process_time() - start < 2


def test_records_are_no_column() -> None:
    records = np.zeros(4, [("a", int), ("b", float)])
    with pytest.raises(InputError, match=r"clients holds records \(a, b\): give one of these, as clients\[name\]"):
        from_arrays(np.eye(4, dtype=np.float32), [0, 1, 0, 1], clients=records)
