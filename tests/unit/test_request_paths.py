"""4.02: a name that a user chose, such as in an annotation, chooses no other path."""

from __future__ import annotations

import pytest

from neuron_dra.kube.requests import JOBS


@pytest.mark.parametrize("name", ["..", ".", "../../../../api/v1/pods", "a/b", "a%2fb"])
def test_name_of_several_segments_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="is no name"):
        JOBS.path("ml", name)


@pytest.mark.parametrize("name", ["train", "a.b", "plugin-x:8080", "a..b"])
def test_name_stays_one_segment(name: str) -> None:
    """The control."""
    assert JOBS.path("ml", name, "status") == f"/apis/batch/v1/namespaces/ml/jobs/{name}/status"
