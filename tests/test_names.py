from __future__ import annotations

from rewa.names import nearest


def test_the_nearest_name_whatever_its_case():
    assert nearest("setting", "k", ["epochs", "K"]) == "there is no setting 'k'; did you mean 'K'? (epochs, K)"
    assert nearest("recipe", "xyz", ["digits"]) == "there is no recipe 'xyz' (digits)"
