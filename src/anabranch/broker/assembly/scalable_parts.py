"""The parts that serve scalable topics and their segments, here and at other brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anabranch.broker.assembly.ground import Ground
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.peers.remote_leaders import RemoteLeaders
from anabranch.broker.peers.remote_scalable import RemoteClassic, RemoteHistory
from anabranch.broker.peers.remote_segments import PeerSegments, ServedSegments
from anabranch.broker.peers.remote_sessions import RemoteSessions
from anabranch.broker.policy.limits import TopicLimits
from anabranch.broker.scalable.classic import ClassicTopics, controller_settings, scalable_topics
from anabranch.broker.scalable.load.scaling import BrokerScaling
from anabranch.broker.scalable.owner.bucket_owners import BucketOwners
from anabranch.broker.scalable.owner.registration import Registration
from anabranch.broker.scalable.owner.segments import RoutedSegments, SegmentOwner, unreachable
from anabranch.broker.scalable.owner.subscription_limits import SubscriptionLimits
from anabranch.broker.scalable.ports import ServedTopics
from anabranch.broker.topics.creation import NewTopics
from anabranch.controller.ports import Segments
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import scalable_name
from anabranch.model.segments import SegmentId, segment_of


class ScalableParts:
    """Some parts are None while scalable topics are turned off."""

    def __init__(
        self,
        ground: Ground,
        topics: ServedTopics,
        new_topics: NewTopics,
        limits: Callable[[TopicName], Awaitable[TopicLimits]],
        remote_segments: Callable[[BrokerAddress], Segments] | None,
    ) -> None:
        """`limits` returns those in force for a topic, `remote_segments` the segments of another broker, by default
        those behind its link."""
        self._ground = ground
        # What this broker does to the segments that it owns, and the same for every segment at any broker.
        self.segment_owner = SegmentOwner(ground.metadata, topics, new_topics, ground.schemas, ground.now_ms)
        self.segments: Segments = RoutedSegments(
            ground.owners, self.segment_owner, remote_segments or self._segments_at
        )
        ServedSegments(self.segment_owner).serve(ground.peers)
        self.subscription_limits = SubscriptionLimits(ground.records, limits)
        self.topics: ScalableTopics | None = None
        self.remote_sessions: RemoteSessions | None = None
        self.registration: Registration | None = None
        self.bucket_owners: BucketOwners | None = None
        self.scaling: BrokerScaling | None = None
        if ground.current_config().scalable_topic_enabled:
            self._turn_on(topics, new_topics)

    def _segments_at(self, owner: BrokerAddress) -> Segments:
        if self._ground.is_one_of_several:
            return PeerSegments(self._ground.peers, owner.service_url)
        return unreachable(owner)

    def _turn_on(self, topics: ServedTopics, new_topics: NewTopics) -> None:
        ground, config, peers = self._ground, self._ground.current_config(), self._ground.peers
        far_classic, far_history, candidates = (
            (RemoteClassic(peers, ground.owners), RemoteHistory(peers), RemoteLeaders(peers, ground.owners))
            if ground.is_one_of_several
            else (None, None, None)
        )
        classic = ClassicTopics(ground.resources, topics, far_classic)
        self.topics = scalable_topics(
            ground.metadata,
            self.segments,
            ground.service_url,
            controller_settings(config, ground.resources, ground.topic_policies),
            classic,
            candidates,
        )
        self.registration = Registration(
            ground.records, self.topics.feed, self.segments, self.subscription_limits
        )
        self.bucket_owners = BucketOwners(ground.records, self.topics.feed)
        self.scaling = BrokerScaling(
            config,
            self.topics,
            ground.metadata,
            ground.resources,
            ground.owners,
            topics,
            new_topics,
            ground.schemas,
            ground.background,
            ground.now_ms,
            ground.loop.time,
            service_url=ground.service_url,
            history_owner=far_history,
        )
        if far_classic is not None and far_history is not None and candidates is not None:
            candidates.serve(self.topics)
            self.remote_sessions = RemoteSessions(
                peers, ground.owners, self.topics, topics.opened, ground.background
            )
            far_classic.serve(classic)
            far_history.serve(self.scaling.history)

    def scaling_on(self) -> BrokerScaling:
        """NotAllowedError while scalable topics are turned off."""
        if self.scaling is None:
            raise NotAllowedError("scalable topics are turned off here: set scalableTopicEnabled=true")
        return self.scaling

    def segment_opened(self, topic: TopicName) -> None:
        if self.topics is not None:
            self.topics.touch(topic)

    def segment_progressed(self, name: TopicName) -> None:
        """A subscription has reached the end of this sealed topic, or moved back: its controller checks again."""
        if self.topics is None:
            return
        if name.domain is Domain.SEGMENT:
            topic, _, number = segment_of(name)
        else:
            # Classic topics become segments in the order of their partitions.
            topic, number = scalable_name(name.base), SegmentId(max(0, name.partition_index))
        controller = self.topics.controllers.get(topic)
        if self.remote_sessions is None or (controller is not None and controller.is_leader):
            self.topics.segment_progress(topic, number)
        else:
            self.remote_sessions.progressed(topic, name, number)
