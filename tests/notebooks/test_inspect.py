"""The notebook runs from its own folder on the committed evidence."""

from pathlib import Path

import pytest


@pytest.mark.slow
# Libraries of the notebook stack warn about their own deprecations and about the event loop.
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_on_the_committed_evidence(repo_root: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="the notebook stack is not installed")
    nbformat = pytest.importorskip("nbformat", reason="the notebook stack is not installed")
    path = repo_root / "experiments" / "notebooks" / "inspect.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(str(output.get("text", "")) + str(output.get("data", "")) for output in outputs)
    assert "passed" in text
    # Verdicts over time, bytes, the memory's lifecycle, step times, digest matrices.
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 5
    assert "digests of numbers compared: " in text
    assert not any(output["output_type"] == "error" for output in outputs)
