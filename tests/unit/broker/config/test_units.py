"""Numbers of brokers, as people write them."""

from __future__ import annotations

import pytest

from anabranch.broker.config.config import BrokerConfig, ConfigError, changed
from anabranch.broker.config.units import BROKERS_AUTO_MAX, broker_count, brokers


def test_auto_leaves_a_core_and_has_an_end() -> None:
    assert [broker_count("auto", cores) for cores in (1, 2, 3, 8, 64)] == [1, 1, 2, 7, BROKERS_AUTO_MAX]
    assert broker_count("3", cores=1) == 3


@pytest.mark.parametrize(("value", "read"), [("auto", "auto"), (" AUTO ", "auto"), ("3", "3"), (8, "8")])
def test_a_number_of_brokers_is_a_number_or_auto(value: object, read: str) -> None:
    assert brokers(value) == read


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "65", "", True, "9" * 5000])
def test_other_numbers_of_brokers_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"brokers = .*: expected auto, or a number from 1 to 64"):
        changed(BrokerConfig(), {"brokers": str(value)})
