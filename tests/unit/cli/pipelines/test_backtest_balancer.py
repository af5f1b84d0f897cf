"""The settings of a backtest of the balancer, as users write them."""

from __future__ import annotations

import pytest

from anabranch.balance.core.settings import BalanceSettings, SplitAlgorithm
from anabranch.cli.main import main
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.pipelines.backtest_balancer import balancer_policies


def test_policies_are_settings_by_the_keys_of_the_settings_file() -> None:
    text = (
        "loadBalancerSheddingConditionHitCountThreshold=1, loadBalancerBrokerLoadTargetStd=0.1,"
        "loadBalancerTransferEnabled=false,defaultNamespaceBundleSplitAlgorithm=flow_or_qps_equally_divide"
    )
    found = balancer_policies(["hash:simple", "usual:", f"own:{text}"])
    assert found == {
        "hash": None,
        "usual": BalanceSettings(),
        "own": BalanceSettings(
            shedding_hits=1,
            load_std_target=0.1,
            is_transferring=False,
            split_algorithm=SplitAlgorithm.TRAFFIC,
        ),
    }


def test_without_policies_the_hash_is_compared_with_the_defaults() -> None:
    found = balancer_policies([])
    assert list(found) == ["simple", "default", "eager"]
    assert (found["simple"], found["default"]) == (None, BalanceSettings())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("loadBalancerSheddingEnabled=true", "expected NAME:KEY=VALUE"),
        ("one:shedding=true", "no KEY=VALUE"),
        ("one:loadBalancerSheddingEnabled=maybe", "cannot be 'maybe'"),
        ("one:loadBalancerSheddingIntervalMinutes=0", "must be at least"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        balancer_policies([text])


def test_a_name_may_be_given_once() -> None:
    with pytest.raises(UsageError, match="a name of its own"):
        balancer_policies(["one:", "one:simple"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--kind", "round"], "no kind of clusters 'round'"),
        (["--brokers", "1"], "there must be 2 brokers at least"),
        (["--hours", "0.1"], "give a quarter of an hour"),
        (["--clusters", "0"], "expected one at least"),
    ],
)
def test_clusters_that_make_no_sense_are_refused_before_spark_starts(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "backtest-balancer", *words, "--output", "not-there"]) != 0
    assert why in capsys.readouterr().err
