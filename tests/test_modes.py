from __future__ import annotations

import pytest
from torch import nn

from rewa.modes import keeping_modes


def test_modes_come_back_also_after_an_error_and_of_modules_that_were_put_in():
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    put_in = nn.Dropout().eval()

    def change():
        with keeping_modes(model) as modes:
            model.eval()
            modes[put_in] = modes[model[0]]
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        change()
    assert [module.training for module in (model, *model, put_in)] == [True, True, False, True]
