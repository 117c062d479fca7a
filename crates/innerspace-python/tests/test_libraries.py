"""Other libraries over our file objects: files of at least 200 MB under a limit of 16 MiB."""

import itertools
import tarfile
import zipfile

import numpy as np
import pytest

import innerspace

LEAST = 200_000_000
pytestmark = pytest.mark.large


@pytest.fixture
def limited():
    """A memory of 16 MiB, which was never exceeded."""
    memory = innerspace.Memory("16MiB")
    yield memory
    assert memory.stats()["peak"] <= 16 << 20


def is_large(path):
    assert path.stat().st_size >= LEAST
    return path


def random_bytes(size):
    return np.random.default_rng(5).bytes(size)


def test_zipfile(limited, tmp_path):
    path, data = tmp_path / "large.zip", random_bytes(50_100_000)
    with zipfile.ZipFile(path, "w") as written:
        for number in range(4):
            written.writestr(f"{number}.bin", data)
    with limited.open(is_large(path)) as file, zipfile.ZipFile(file) as read:
        assert read.testzip() is None and read.namelist() == [f"{number}.bin" for number in range(4)]
        assert read.read("3.bin") == data
    with limited.open(tmp_path / "new.zip", "w+") as file, zipfile.ZipFile(file, "w") as written:
        written.writestr("a", b"written through the memory")
    assert zipfile.ZipFile(tmp_path / "new.zip").read("a") == b"written through the memory"


def test_tarfile(limited, tmp_path):
    inner = tmp_path / "inner.bin"
    inner.write_bytes(random_bytes(LEAST))
    path = tmp_path / "large.tar"
    with tarfile.open(path, "w") as written:
        written.add(inner, "inner.bin")
    with limited.open(is_large(path)) as file, tarfile.open(fileobj=file) as read:
        assert read.extractfile("inner.bin").read() == inner.read_bytes()


def test_h5py(limited, tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "large.h5"
    data = np.random.default_rng(6).random((25_100, 1000))
    with h5py.File(path, "w") as written:
        written.create_dataset("plain", data=data)
        written.create_dataset("chunked", data=data[:100], chunks=(10, 100), compression="gzip")
    with limited.open(is_large(path)) as file, h5py.File(file, "r") as read:
        for start in range(0, len(data), 5000):
            assert np.array_equal(read["plain"][start : start + 5000], data[start : start + 5000])
        assert np.array_equal(read["plain"][::500, 7], data[::500, 7])
        assert np.array_equal(read["chunked"][:], data[:100])
    with limited.open(tmp_path / "new.h5", "w+") as file, h5py.File(file, "w") as written:
        written["x"] = data[:10]
    with h5py.File(tmp_path / "new.h5") as read:
        assert np.array_equal(read["x"][:], data[:10])


def test_parquet(limited, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "large.parquet"
    rng = np.random.default_rng(7)
    table = pyarrow.table({name: rng.random(6_500_000) for name in "abcd"})
    parquet.write_table(table, path, row_group_size=500_000, compression="none", use_dictionary=False)
    with limited.open(is_large(path)) as file:
        read = parquet.ParquetFile(file)
        at = 0
        for group in range(read.num_row_groups):
            part = read.read_row_group(group)
            assert part.equals(table.slice(at, part.num_rows))
            at += part.num_rows
        assert at == table.num_rows


def test_pandas(limited, tmp_path):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "large.csv"
    rows = "".join(f"{n},{n * n % 1009},{n / 7:.6f},some text of a row {n % 13}\n" for n in range(50_000))
    with open(path, "w") as written:
        written.write("a,b,c,d\n")
        while written.tell() < LEAST:
            written.write(rows)
    with limited.open(is_large(path)) as file:
        chunks = itertools.zip_longest(
            pandas.read_csv(file, chunksize=500_000), pandas.read_csv(path, chunksize=500_000)
        )
        assert all(ours.equals(theirs) for ours, theirs in chunks)


def test_pillow(limited, tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "large.bmp"
    image.MAX_IMAGE_PIXELS = None
    pixels = np.random.default_rng(8).integers(0, 256, (8200, 8200, 3), dtype="u1")
    image.fromarray(pixels).save(path)
    with limited.open(is_large(path)) as file:
        assert np.array_equal(np.asarray(image.open(file)), pixels)


def test_zarr(limited, tmp_path):
    zarr = pytest.importorskip("zarr", minversion="3")
    path, data = tmp_path / "large.zarr.zip", np.random.default_rng(9).random((25_100, 1000))
    with zarr.storage.ZipStore(path, mode="w") as store:
        zarr.create_array(store, data=data, chunks=(1000, 1000), compressors=None)
    with limited.open(is_large(path)) as file:
        store = zarr.storage.ZipStore(path, mode="r")
        # The store opens paths only, so its archive is exchanged for one over our file.
        store._sync_open()
        store._zf.close()
        store._zf = zipfile.ZipFile(file)
        read = zarr.open_array(store, mode="r")
        for start in range(0, len(data), 5000):
            assert np.array_equal(read[start : start + 5000], data[start : start + 5000])


def test_numpy(limited, tmp_path):
    path = tmp_path / "large.npy"
    data = np.random.default_rng(10).random((25_100, 1000))
    np.save(path, data)
    ours = limited.open_npy(is_large(path))
    rows = np.random.default_rng(11).integers(0, len(data), 1000)
    assert np.array_equal(ours[rows], data[rows])
    assert np.array_equal(np.asarray(ours[::50, ::3]), data[::50, ::3])
    np.testing.assert_allclose(ours.mean(axis=0), data.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(ours[:, 17].mean(), data[:, 17].mean(), rtol=1e-12)


def test_dask(limited, tmp_path):
    dask_array = pytest.importorskip("dask.array")
    path = tmp_path / "large.npy"
    data = np.random.default_rng(12).random((25_100, 1000))
    np.save(path, data)
    ours = limited.open_npy(is_large(path))
    lazily = dask_array.from_array(ours, chunks=(250, 1000))
    total, mean, top, part, rows = dask_array.compute(
        lazily.sum(), lazily.mean(axis=0), lazily.max(axis=1), lazily[::50, ::3], lazily[[7, 25_000, 3]],
        scheduler="threads", num_workers=4,
    )
    np.testing.assert_allclose(total, data.sum(), rtol=1e-12)
    np.testing.assert_allclose(mean, data.mean(axis=0), rtol=1e-12)
    assert np.array_equal(top, data.max(axis=1))
    assert np.array_equal(part, data[::50, ::3])
    assert np.array_equal(rows, data[[7, 25_000, 3]])
    target = limited.array(tmp_path / "result.bin", "f8", data.shape, "w+")
    dask_array.store(lazily * 2 + 1, target, lock=False, scheduler="threads", num_workers=4)
    target.flush()
    assert np.array_equal(np.fromfile(tmp_path / "result.bin").reshape(data.shape), data * 2 + 1)
    # A chunk is one of our arrays, reduced by blocks; anything else copies it, within the limit.
    whole = dask_array.from_array(ours, chunks=-1)
    np.testing.assert_allclose(whole.sum().compute(scheduler="threads"), data.sum(), rtol=1e-12)
    with pytest.raises(innerspace.LimitError, match="raise the limit"):
        (whole * 2).compute(scheduler="threads")
