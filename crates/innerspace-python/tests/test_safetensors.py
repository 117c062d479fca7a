"""Files in the safetensors format, beside the format's own package."""

import json
import struct

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import innerspace


def tensors():
    generator = np.random.default_rng(5)
    return {
        "embedding.weight": generator.standard_normal((1000, 64)).astype("float32"),
        "half": generator.standard_normal((33, 7)).astype("float16"),
        "double": generator.standard_normal(1001),
        "ids": generator.integers(-100, 100, (3, 4, 5)),
        "bytes": generator.integers(0, 255, 777, dtype="u1"),
        "mask": generator.random(99) > 0.5,
        "complex": (generator.standard_normal(10) + 1j).astype("complex64"),
        "scalar": np.array(3.5, "float32"),
        "empty": np.zeros((0, 4), "int16"),
        "unsigned": generator.integers(0, 1 << 60, 20, dtype="uint64"),
    }


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors(), path, metadata={"format": "np", "note": "ä"})
    return path


def test_equal_to_the_formats_own_package(memory, saved):
    ours = memory.open_safetensors(saved)
    expected = safetensors.numpy.load_file(saved)
    with safetensors.safe_open(saved, framework="np") as theirs:
        assert sorted(ours.keys()) == sorted(theirs.keys())
        assert ours.metadata() == theirs.metadata()
        assert ours.offset_keys() == theirs.offset_keys()
        for name in theirs.keys():
            for found in (ours.get_tensor(name), np.asarray(ours[name]), ours.get_slice(name)[...]):
                assert found.dtype == expected[name].dtype and found.shape == expected[name].shape
                np.testing.assert_array_equal(np.asarray(found), expected[name])
        part = theirs.get_slice("embedding.weight")[10:20, 3]
        np.testing.assert_array_equal(ours.get_slice("embedding.weight")[10:20, 3], part)
    assert len(ours) == 10 and "half" in ours and "other" not in ours
    assert ours.dtype_name("half") == "F16"
    with pytest.raises(KeyError, match="no tensor 'other'"):
        ours["other"]


def test_a_tensor_is_read_only_and_inside_the_limit(memory, saved):
    ours = memory.open_safetensors(saved)
    tensor = ours.get_tensor("double")
    with pytest.raises(ValueError):
        tensor[0] = 1
    del ours
    np.testing.assert_array_equal(tensor, tensors()["double"])


def test_a_model_larger_than_the_limit(tmp_path):
    path = tmp_path / "large.safetensors"
    generator = np.random.default_rng(6)
    large = {f"layer.{n}": generator.standard_normal((512, 512)).astype("float32") for n in range(24)}
    large["head"] = generator.standard_normal((4096, 512)).astype("float32")
    safetensors.numpy.save_file(large, path)
    memory = innerspace.Memory("4MiB")
    ours = memory.open_safetensors(path)
    for n in range(24):
        np.testing.assert_array_equal(ours.get_tensor(f"layer.{n}"), large[f"layer.{n}"])
    with pytest.raises(innerspace.LimitError):
        ours.get_tensor("head")
    np.testing.assert_array_equal(ours["head"][4000:4010], large["head"][4000:4010])
    assert ours["head"].mean() == pytest.approx(large["head"].mean(dtype="float64"), abs=1e-6)
    assert memory.stats()["peak"] <= 4 << 20


def made(tmp_path, header, data=b"", length=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "made.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def test_dtypes_that_numpy_lacks(memory, tmp_path):
    path = made(tmp_path, {"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}, b"abcd")
    ours = memory.open_safetensors(path)
    assert bytes(ours.view("x")) == b"abcd" and ours.dtype_name("x") == "BF16"
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(TypeError, match="ml_dtypes"):
            ours.get_tensor("x")
    else:
        assert ours.get_tensor("x").dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    "header, data, length",
    [
        (b"", b"", 1 << 60),
        (b"{}", b"", 1000),
        (b"{", b"", None),
        (b"[]", b"", None),
        (b"\xff\xfe", b"", None),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"short", None),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234", None),
        ({"x": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}, b"1234", None),
        ({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234", None),
        ({"x": {"dtype": "U8", "shape": [1 << 63, 4], "data_offsets": [0, 4]}}, b"1234", None),
        ({"x": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}, b"12345678", None),
        ({"x": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, b"too long", None),
        ({"x": {"dtype": "U8", "shape": [(1 << 64) - 1], "data_offsets": [0, (1 << 64) - 1]}}, b"", None),
    ],
)
def test_bad_headers_are_exceptions(memory, tmp_path, header, data, length):
    path = made(tmp_path, header, data, length)
    with pytest.raises(innerspace.FileError, match="safetensors format") as caught:
        memory.open_safetensors(path)
    assert caught.value.filename == str(path) and caught.value.errno == 22
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(path, framework="np").keys()


def test_files_that_cannot_be_read(memory, tmp_path):
    with pytest.raises(FileNotFoundError):
        memory.open_safetensors(tmp_path / "missing")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(innerspace.FileError, match="0 bytes"):
        memory.open_safetensors(tmp_path / "empty")
