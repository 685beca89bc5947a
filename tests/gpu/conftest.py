"""Skip tests that need a GPU on a machine without one, with the reason."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        reason = f"torch {torch.__version__} finds no CUDA device"
        for item in items:
            if item.get_closest_marker("gpu") is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
