"""What is said about words and options that are not there."""

from __future__ import annotations

import pytest

from anabranch.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("topic list", "there is no command 'topic'; did you mean topics or topic-policies?"),
        (
            "standalone --web-port 8081",
            "there is no option --web-port; did you mean --one-port or --port or --http-port?",
        ),
        ("consume orders --subscripton billing", "did you mean --subscription?"),
        (
            "topics create orders --segment=2 --scalable --xyzzy",
            "there is no option --xyzzy; `anabranch topics create",
        ),
        ("topics split orders 0 1", "'1' is one argument too many"),
        ("topics split orders first", "argument segment: expected a whole number, not 'first'"),
        ("produce orders -m x --rate fast", "expected a number, not 'fast'"),
    ],
)
def test_a_command_says_itself_what_it_does_not_know(words: str, said: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert said in shown
    # The usage above is the command's own.
    if "there is no command" not in said:
        assert shown.startswith(f"usage: anabranch {words.split()[0]}")
