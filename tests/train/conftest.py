from __future__ import annotations

import pytest

from tiny_data import write_images


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Two classes of images, 15 to train and 4 to test in each; only to be read."""
    root = tmp_path_factory.mktemp("images")
    write_images(root)
    return root
