"""Names of nodes as ZooKeeper takes them."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.metadata.zookeeper.names import Rooted, decoded, encoded

# What `check_path` lets through: no surrogates, no private use, no non-characters, no controls.
NAMES = st.text(
    st.characters(
        blacklist_categories=("Cs", "Co", "Cc"),
        blacklist_characters="".join(map(chr, range(0xFFF0, 0x10000))),
    ),
    max_size=40,
)


@given(NAMES)
def test_a_name_comes_back_as_it_was_and_has_no_character_that_zookeeper_refuses(name: str) -> None:
    assert decoded(encoded(name)) == name
    assert all(ord(character) <= 0xFFFF for character in encoded(name))


@given(st.lists(NAMES, unique=True, max_size=20))
def test_different_names_stay_different(names: list[str]) -> None:
    assert len({encoded(name) for name in names}) == len(names)


def test_usual_names_stay_as_they_are() -> None:
    for name in ("/managed-ledgers/public/default/persistent/t%2Fx", "/日本語/é", "/spaces are fine"):
        assert encoded(name) == name


def test_what_others_wrote_is_not_taken_for_an_escape() -> None:
    for name in ("\u241b", "\u241bzz;", "\u241b41;", "\u241b01f6f6;", "\u241b110000;", "\u241b1f6f6"):
        assert decoded(name) == name


def test_paths_lie_below_the_chroot() -> None:
    rooted = Rooted("/prod")
    assert (rooted.real("/"), rooted.real("/a/🛶")) == ("/prod", "/prod/a/\u241b1f6f6;")
    assert (rooted.ours("/prod"), rooted.ours("/prod/a/\u241b1f6f6;")) == ("/", "/a/🛶")
    assert rooted.ours("/production/a") is None
    assert (Rooted("").real("/"), Rooted("").ours("/a")) == ("/", "/a")
