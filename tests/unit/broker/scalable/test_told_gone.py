"""Clients are told of pruned segments what readers that come back need to know."""

from __future__ import annotations

from hypothesis import given

from anabranch.broker.scalable.watch.layout_views import encode_dag, shown
from anabranch.client.transport.layout_watch import read_layout
from anabranch.model.gone import Gone
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import WHOLE, SegmentId
from anabranch.wire import pulsar_pb2 as pb
from unit.model.layouts import layouts


@given(layouts())
def test_what_a_layout_remembers_reaches_its_watchers(layout: SegmentLayout) -> None:
    sent = encode_dag(layout, {}, None).SerializeToString()
    assert read_layout(pb.ScalableTopicDAG.FromString(sent)).gone == layout.gone


def test_a_segment_on_its_way_out_is_told_as_gone() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 0).mark_deleting([SegmentId(0)], {SegmentId(0): (5, 7)})
    assert layout.gone == ()
    assert read_layout(encode_dag(shown(layout), {}, None)).gone == (Gone(SegmentId(0), WHOLE, (5, 7)),)


def test_of_a_broker_that_tells_nothing_nothing_is_known() -> None:
    dag = encode_dag(SegmentLayout.initial(1, 0), {}, None)
    dag.ClearField("tells_gone")
    assert read_layout(dag).gone is None
