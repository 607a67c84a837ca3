from pathlib import Path

import numpy as np
import pytest
import safetensors

from harness.checkpoint.header import read_header
from harness.checkpoint.writer import TensorToWrite, write_safetensors
from harness.errors import CheckpointError


def tensor(dtype: str, array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> TensorToWrite:
    data = array.tobytes()
    return TensorToWrite(dtype=dtype, shape=array.shape, pieces=lambda: [data[:3], b"", data[3:]])


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    arrays = {
        "b": np.arange(3, dtype="uint8"),
        "ä": np.arange(6, dtype="float32").reshape(2, 3),
        "a": np.arange(5, dtype="float16"),
        "none": np.zeros((0, 4), dtype="float32"),
        "scalar": np.array(7.0, dtype="float32"),
    }
    fractions: list[float] = []
    path = tmp_path / "model.safetensors"
    write_safetensors(
        path,
        {key: tensor(str(array.dtype), array) for key, array in arrays.items()},
        progress=fractions.append,
    )
    with safetensors.safe_open(path, "np") as file:
        assert set(file.keys()) == arrays.keys()
        assert file.metadata() == {"format": "pt"}
        for key, array in arrays.items():
            assert file.get_tensor(key).dtype == array.dtype
            assert np.array_equal(file.get_tensor(key), array)
    header = read_header(path)
    for key, entry in header.entries.items():
        assert (header.data_offset + entry.begin) % arrays[key].itemsize == 0
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_bytes_do_not_depend_on_the_order_given(tmp_path: Path) -> None:
    arrays = {key: np.full(2, index, dtype="uint8") for index, key in enumerate("cab")}
    tensors = {key: tensor("uint8", array) for key, array in arrays.items()}
    write_safetensors(tmp_path / "1", tensors)
    write_safetensors(tmp_path / "2", dict(sorted(tensors.items())))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.parametrize("size", [3, 5])
def test_a_tensor_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    wrong = TensorToWrite(dtype="uint8", shape=(4,), pieces=lambda: [bytes(size)])
    with pytest.raises(CheckpointError, match="another size"):
        write_safetensors(tmp_path / "1", {"a": wrong})


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(b"kept")
    with pytest.raises(FileExistsError):
        write_safetensors(tmp_path / "1", {})
    assert (tmp_path / "1").read_bytes() == b"kept"
