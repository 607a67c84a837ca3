import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from harness.evidence import tables
from harness.measure.distributions import distribution_rows, installed_version, normalized_name


@pytest.fixture
def site(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    return tmp_path


def install(folder: Path, name: str, version: str, metadata: str | None = None) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text if metadata is None else metadata)


def test_rows_are_normalized_sorted_and_unique(site: Path) -> None:
    install(site / "first", "Zed_Lib", "1.0+cpu")
    install(site / "first", "alpha.beta", "2.0")
    install(site / "second", "zed-lib", "0.9")
    install(site / "second", "broken", "1", "Metadata-Version: 2.1\n")
    assert distribution_rows() == [
        {"name": "alpha-beta", "version": "2.0"},
        {"name": "zed-lib", "version": "1.0+cpu"},
    ]
    assert installed_version("zed-lib") == "1.0+cpu"
    assert installed_version("missing") is None


def test_rows_of_this_environment_make_a_table() -> None:
    rows = distribution_rows()
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    data, num_rows = tables.encode("distributions", rows)
    assert tables.decode("distributions", data, where="here") == rows
    assert num_rows == len(rows)
    assert {"numpy", "pyarrow", "pytest"} <= {row["name"] for row in rows}


@pytest.mark.parametrize("name", ["A", "a-_.b", "PyYAML", "jaraco.text", "x--y"])
def test_names_are_compared_as_package_indexes_do(name: str) -> None:
    assert normalized_name(name) == canonicalize_name(name)
