"""The page on a real broker: from no topics at all to splits, policies and a broker that is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anabranch import blocking
from browser.told import Told
from harness.broker_process import BrokerProcess
from harness.browser import Page

Opened = Callable[..., Page]

# A sample a second, so that tests need not wait ten.
QUICK = {"scalableTopicLoadReportInterval": "1s"}


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[BrokerProcess]:
    """For those who want it empty, or gone."""
    with BrokerProcess(tmp_path, QUICK) as started:
        yield started


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Shared: each test has topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), QUICK) as started:
        yield started


def ui(broker: BrokerProcess, path: str = "") -> str:
    return f"http://127.0.0.1:{broker.http_port}/ui{path}"


def test_an_empty_broker_tells_what_to_type_and_a_new_topic_appears_by_itself(
    fresh: BrokerProcess, opened: Opened
) -> None:
    page = opened(ui(fresh))
    page.shows("No topics yet")
    page.shows("anabranch topics create orders --scalable")
    page.shows("Brokers")
    fresh.put("scalable/public/default/orders?numInitialSegments=3")
    page.shows("3 segments")
    page.press(".topics tbody a")
    page.shows("River of segments")
    page.shows("Nothing flows yet")
    page.shows("Nobody reads this topic")
    page.shows("anabranch produce topic://public/default/orders")
    # As a query of Spark has one, which is never connected.
    fresh.put("scalable/public/default/orders/subscriptions/later?type=STREAM")
    page.shows("No consumer is connected")
    page.shows("0 wait for subscription later")


def test_split_and_merge_from_the_page_are_seen_in_the_river(broker: BrokerProcess, opened: Opened) -> None:
    broker.put("scalable/public/default/shaped")
    page = opened(ui(broker, "#/topics/public/default/shaped"))
    page.until("anabranch.page.river.picture")
    page.press(".segments button.link")
    page.press(".segment-panel .actions .button")
    page.shows("Split segment 0? Press again")
    page.press(".segment-panel .actions .button")
    page.shows("2 active segments")
    page.until(
        "document.querySelectorAll('.mark.split').length === 2"
    )  # One in the river, one in the legend.
    page.press(".segments tbody tr:first-child button.link")
    page.evaluate("[...document.querySelectorAll('.segment-panel .button')].at(-1).click()")
    page.evaluate("[...document.querySelectorAll('.segment-panel .button')].at(-1).click()")
    page.shows("1 active segment ")
    page.shows("An operator asked for the merge")


@pytest.mark.complains
def test_a_policy_is_set_refused_and_removed_from_the_page(broker: BrokerProcess, opened: Opened) -> None:
    broker.put("scalable/public/default/ruled")
    page = opened(ui(broker, "#/topics/public/default/ruled"))
    page.press(".policy .actions .button")
    page.press("#policy-maxSegments")
    page.type("8")
    page.press(".policy .button.main")
    page.shows("Saved")
    assert broker.get("scalable/public/default/ruled/autoScalePolicy") == {"maxSegments": 8}
    page.until("document.querySelector('.policy .from.topic')")
    page.press(".policy .actions .button")
    page.press("#policy-minSegments")
    page.type("9")
    page.press(".policy .button.main")
    page.until("document.querySelector('.policy [role=status].bad').textContent.includes('inSegments')")
    page.evaluate("[...document.querySelectorAll('.policy .button')].at(-1).click()")
    page.until("!document.querySelector('.policy .from.topic') && document.querySelector('.policy .from')")
    assert broker.get("scalable/public/default/ruled/autoScalePolicy") is None


def test_a_classic_topic_says_how_it_becomes_scalable(broker: BrokerProcess, opened: Opened) -> None:
    broker.put("persistent/public/default/old")
    page = opened(ui(broker, "#/topics/public/default/old"))
    page.shows("anabranch topics migrate persistent://public/default/old")
    assert page.evaluate("document.querySelector('.river-card').hidden")


SIZES = [(width, dark) for width in (400, 800, 1400) for dark in (False, True)]
# What reaches beyond the window, but for what lies in a part that scrolls by itself.
BEYOND = """[...document.querySelectorAll('main *')].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width && box.right > innerWidth + 1 && !one.closest('.scroll, svg, .river, canvas');
}).map((one) => one.outerHTML.slice(0, 80))"""


def fill(broker: BrokerProcess) -> None:
    """A topic of two partitions with a slow subscription, and a scalable one whose quota holds producers."""
    with blocking.connect(broker.url) as client:
        for name in ("persistent://public/default/full", "topic://public/default/wide"):
            with client.queue_consumer(name, "slow", start="earliest"), client.producer(name) as producer:
                for n in range(200):
                    producer.post(b"%d" % n, key=str(n))
                producer.flush()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("filled"), QUICK) as started:
        started.put("persistent/public/default/full/partitions", 2)
        started.put("scalable/public/default/wide?numInitialSegments=2")
        fill(started)
        quota = {"limitSize": 10, "limitTime": -1, "policy": "producer_request_hold"}
        started.post("persistent/public/default/full/backlogQuota", quota)
        yield started


@pytest.mark.parametrize(("width", "dark"), SIZES)
@pytest.mark.parametrize("path", ["", "#/topics/public/default/full", "#/topics/public/default/wide"])
def test_figures_and_troubles_are_shown_in_windows_of_any_size(
    filled: BrokerProcess, opened: Opened, path: str, width: int, *, dark: bool
) -> None:
    page = opened(ui(filled, path), width=width, dark=dark)
    if not path:
        page.shows("Held back")
        page.shows("its consumers must catch up first")
        page.shows(" of ")  # The log, of what it may take.
    else:
        page.shows("and how far each is behind")
        page.until("document.querySelector('.subscriptions tbody').textContent.includes('200')")
        is_classic = path.endswith("full")
        assert page.evaluate("document.querySelectorAll('.partitions tbody tr').length") == (
            2 if is_classic else 0
        )
        page.press(".browse button")
        page.until("document.querySelectorAll('.messages li').length === 20")
        # The parts of a topic are put together by time, in which several may be equal.
        assert int(page.evaluate("document.querySelector('.messages pre').textContent")) >= 100
    assert page.evaluate(BEYOND) == []


def test_messages_are_looked_at_by_key_time_and_position(filled: BrokerProcess, opened: Opened) -> None:
    page = opened(ui(filled, "#/topics/public/default/wide"))
    page.shows("looking acknowledges nothing")
    page.press(".browse [type=search]")
    page.type("42")
    page.press(".browse button")
    page.shows("1 message.")
    assert page.evaluate("document.querySelector('.messages strong').textContent") == "42"
    place = page.evaluate("document.querySelector('.messages .quiet').textContent").split(" ")[0]
    page.evaluate("document.querySelector('.browse [type=search]').value = ''")
    page.evaluate(
        "((select) => { select.value = 'position'; select.dispatchEvent(new Event('change')); })"
        "(document.querySelector('.browse select'))"
    )
    page.press(".browse button")
    page.shows("A position is ledger:entry")
    page.press(".browse [type=text]")
    page.type(":".join(place.split(":")[:2]))
    page.press(".browse button")
    page.until("document.querySelectorAll('.messages li').length > 1")
    page.evaluate(
        "((select) => { select.value = 'time'; select.dispatchEvent(new Event('change')); })"
        "(document.querySelector('.browse select'))"
    )
    page.press(".browse button")
    page.shows("Choose a time first")
    page.evaluate("document.querySelector('.browse [type=datetime-local]').value = '2001-01-01T00:00:00'")
    page.press(".browse button")
    page.shows("20 messages.")
    page.until("Number(document.querySelector('.messages pre').textContent) < 100")


def test_names_are_text_whatever_is_in_them(broker: BrokerProcess, opened: Opened) -> None:
    broker.put("scalable/public/default/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    page = opened(ui(broker))
    page.shows("<img src=x onerror=alert(1)>")
    page.evaluate(
        "[...document.querySelectorAll('.topics tbody a')].find((a) => a.textContent.includes('<img')).click()"
    )
    page.shows("River of segments")
    assert page.evaluate("document.querySelector('h1').textContent") == "<img src=x onerror=alert(1)>"
    assert page.evaluate("document.querySelectorAll('main img').length") == 0


@pytest.mark.complains
def test_a_broker_that_is_gone_is_said_so_and_found_again(fresh: BrokerProcess, opened: Opened) -> None:
    fresh.put("scalable/public/default/orders")
    page = opened(ui(fresh, "#/topics/public/default/orders"))
    page.until("anabranch.page.river.picture")
    fresh.kill()
    page.shows("The broker does not answer")
    page.shows("Trying again")
    page.shows("River of segments")
    fresh.start()
    page.until("document.querySelector('#status').textContent === 'live'", 30)
    page.until("document.querySelector('#banner').hidden")


@pytest.mark.complains
def test_a_topic_that_is_not_there_says_how_to_make_it(broker: BrokerProcess, opened: Opened) -> None:
    page = opened(ui(broker, "#/topics/public/default/none"))
    page.shows("There is no such topic")
    page.shows("anabranch topics create")


@pytest.mark.complains
def test_a_refusal_is_shown_with_the_brokers_reason(opened: Opened) -> None:
    reason = "a client without a role may not administer public/default"
    with Told({"overview": lambda _: (403, {"reason": reason})}) as told:
        page = opened(told.url)
        page.shows("The broker refused")
        page.shows(reason)


def test_a_segments_heat_is_the_same_in_the_table_and_in_its_card(
    filled: BrokerProcess, opened: Opened
) -> None:
    """The table averages over a minute, the card had the latest sample only."""
    page = opened(ui(filled, "#/topics/public/default/wide"))
    page.until("anabranch.page.river.picture")
    page.press(".segments button.link")
    page.until("document.querySelector('.segment-panel .facts')")
    same = """(() => {
        const shown = document.querySelector('.segments tbody tr td:nth-child(5)').textContent;
        const facts = [...document.querySelectorAll('.segment-panel dt')];
        const heat = facts.find((one) => one.textContent === 'Heat').nextSibling.textContent;
        return heat.startsWith(`${shown}, averaged over 1 min`);
    })()"""
    page.until(same)


def test_no_two_times_below_a_chart_read_the_same(filled: BrokerProcess, opened: Opened) -> None:
    """Of a young topic the marks are some seconds apart, and each said the same minute."""
    page = opened(ui(filled, "#/topics/public/default/wide"))
    # Those of time are in the middle of their marks, those of amounts at the end.
    marks = "document.querySelector('.chart').querySelectorAll('.tick-label[text-anchor=middle]')"
    labels = f"[...{marks}].map((one) => one.textContent)"
    found = page.until(f"{labels}.length > 1 && {labels}")
    assert len(set(found)) == len(found)


def test_topics_are_cards_in_a_narrow_window_and_fill_a_wide_one(
    filled: BrokerProcess, opened: Opened
) -> None:
    """The last columns were cut off below 800 px, and a long list was seen through a slit of seven rows."""
    hidden = """(() => {
        const card = document.querySelector('.topics').closest('.card').getBoundingClientRect();
        return [...document.querySelectorAll('.topics td')].filter((one) => {
            const box = one.getBoundingClientRect();
            return !box.width || box.right > card.right || box.right > innerWidth;
        }).length;
    })()"""
    page = opened(ui(filled), width=400)
    page.until("document.querySelectorAll('.topics tbody tr').length >= 2")
    assert page.evaluate(hidden) == 0
    shown = page.evaluate("getComputedStyle(document.querySelector('.topics td.number'), '::before').content")
    assert shown == '"In, msg/s"'
    # One line for name, views, state and colours.
    assert page.evaluate("document.querySelector('header').getBoundingClientRect().height") < 64
    page.resize(800, 900)
    assert page.evaluate(hidden) == 0
    page.resize(1400, 1000)
    assert page.evaluate(hidden) == 0
    assert (
        page.evaluate("parseFloat(getComputedStyle(document.querySelector('.scroll.tall')).maxHeight)") >= 800
    )


# Figures of tables that stick out of their cell or of their card.
CUT = """[...document.querySelectorAll('.cards tbody tr > *, .topics td.number')].filter((one) => {
    const box = one.getBoundingClientRect();
    const card = one.closest('.card').getBoundingClientRect();
    return box.width && (box.right > card.right || one.scrollWidth > one.clientWidth + 1);
}).map((one) => one.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("path", ["", "#/topics/public/default/full", "#/topics/public/default/wide"])
def test_no_figure_is_cut_off_on_a_telephone(filled: BrokerProcess, opened: Opened, path: str) -> None:
    """Of brokers, segments and subscriptions only the first columns were seen, and half a word of topics' last."""
    page = opened(ui(filled, path), width=400, height=800)
    shown = "[...document.querySelectorAll('.cards tbody tr')].filter((one) => one.offsetParent).length"
    page.until(f"{shown} > 0")
    assert page.evaluate(CUT) == []
    assert page.evaluate("getComputedStyle(document.querySelector('.cards thead')).display") == "none"
    page.resize(1400, 900)
    assert page.evaluate("getComputedStyle(document.querySelector('.cards thead')).display") != "none"


def test_sentences_of_brokers_have_rates_in_words_and_times_of_this_clock(
    filled: BrokerProcess, opened: Opened
) -> None:
    page = opened(ui(filled))
    told = page.evaluate("""(async () => {
        const { sentence } = await import('/ui/format.js');
        const { clock } = await import('/ui/format.js');
        const at = new Date(); at.setMilliseconds(0);
        const utc = at.toISOString().replace('T', ' ').slice(0, 19) + ' UTC';
        return [
            sentence('2 has bytesRateOut 2.5 MB/s, and 3 msgRateIn 1,200/s.'),
            sentence(`cold until ${utc}.`) === `cold until ${clock(at.getTime(), true)}.`,
            sentence('left alone until 2023-11-16 08:00:00 UTC.').includes('2023'),
        ];
    })()""")
    assert told == ["2 has 2.5 MB/s out, and 3 1,200 msg/s in.", True, True]


@pytest.mark.complains
def test_a_topic_that_is_not_there_is_answered_with_the_command_that_makes_it(
    broker: BrokerProcess, opened: Opened
) -> None:
    page = opened(ui(broker, "#/topics/public/default/nowhere"))
    page.shows("There is no such topic")
    made = page.evaluate("document.querySelector('.lead code').textContent")
    assert made == "anabranch topics create topic://public/default/nowhere --scalable"


def test_commands_to_type_reach_the_broker_whose_page_it_is(fresh: BrokerProcess, opened: Opened) -> None:
    """They were for the usual ports, whichever the broker had."""
    page = opened(ui(fresh))
    page.shows("No topics yet")
    origin = f"http://127.0.0.1:{fresh.http_port}"
    page.shows(f"anabranch topics create orders --scalable --admin-url {origin}")
    url = page.evaluate("anabranch.page.answer.brokers.find((one) => one.isThis).serviceUrl")
    page.shows(f"-m hello --key customer-7 --service-url {url}")
    fresh.put("scalable/public/default/dry")
    page = opened(ui(fresh, "#/topics/public/default/dry"))
    page.shows("Nothing flows yet")
    page.shows(
        f"anabranch produce topic://public/default/dry -m hello --key customer-7 -n 1000 --service-url {url}"
    )
    usual = """import('/ui/commands.js').then(({ toService }) => [
        toService('a', 'pulsar://localhost:6650'), toService('a', undefined), toService('a', 'pulsar+ssl://localhost:6651'),
    ].join())"""
    assert page.evaluate(usual) == "a,a,a --service-url pulsar+ssl://localhost:6651"
