"""What the REST uses of a broker, taken from the parts that the broker is made of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from anabranch.broker.admin.elsewhere import Elsewhere
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.assembly.client_parts import ClientParts
from anabranch.broker.assembly.ground import Ground
from anabranch.broker.assembly.scalable_parts import ScalableParts
from anabranch.broker.assembly.topic_parts import TopicParts
from anabranch.broker.catalog.dynamic_config import DynamicConfig
from anabranch.broker.connection.connections import ServedConnections
from anabranch.broker.hidden_writes.records import WriteRecords
from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.broker.observe.table_reports import TableReports
from anabranch.broker.observe.troubles import Troubles
from anabranch.broker.policy.effective import EffectivePolicies
from anabranch.broker.topics.creation import NewTopics
from anabranch.model.names import TopicName


def admin_services(
    ground: Ground,
    topics: TopicParts,
    scalable: ScalableParts,
    clients: ClientParts,
    connections: ServedConnections,
    new_topics: NewTopics,
    non_persistent: NonPersistentTopics,
    dynamic_config: DynamicConfig,
    write_records: WriteRecords,
    elsewhere: Elsewhere,
    *,
    has_one_port: bool,
    policies: Callable[[TopicName], Awaitable[EffectivePolicies]],
    probe: Callable[[], Awaitable[None]],
    loop_share: Callable[[], float],
    table_reports: TableReports,
    metrics: Callable[[], AsyncIterator[bytes]],
    troubles: Callable[[], Awaitable[Troubles]],
) -> AdminServices:
    """`AdminServices` says what each of them is."""
    return AdminServices(
        current_config=ground.current_config,
        metadata=ground.metadata,
        log=ground.log,
        resources=ground.resources,
        registry=ground.registry,
        owners=ground.owners,
        shared=ground.shared,
        hashed=ground.hashed,
        isolation=ground.isolation,
        balancer=ground.balancer,
        placement=None if ground.balance is None else ground.balance.placement,
        load_work=None if ground.balance is None else ground.balance.work,
        has_one_port=has_one_port,
        elsewhere=elsewhere,
        sign_in=clients.sign_in,
        rights=ground.rights,
        schemas=ground.schemas,
        topic_policies=ground.topic_policies,
        dynamic_config=dynamic_config,
        write_records=write_records,
        records=ground.records,
        segment_owner=scalable.segment_owner,
        scalable=scalable.topics,
        registration=scalable.registration,
        current_autoscaler=lambda: scalable.scaling_on().scaler,
        open_topics=topics.open,
        new_topics=new_topics,
        non_persistent=non_persistent,
        sessions=connections.sessions,
        connections_opened=lambda: connections.opened_total,
        troubles=troubles,
        now_ms=ground.now_ms,
        started_ms=ground.started_ms,
        server_version=ground.server_version,
        service_url=ground.me.service_url,
        service_url_tls=ground.me.service_url_tls,
        http_url=ground.me.http_url,
        addresses=ground.me.at,
        policies=policies,
        topics=topics.known.stored,
        has_scalable=topics.known.has_scalable,
        part_of=topics.known.part_of,
        check_lookup=topics.known.check_lookup,
        find_owner=clients.owners.find,
        check_new_subscription=partial(scalable.subscription_limits.check_new, is_by_use=False),
        check_quotas=topics.rounds.check_quotas,
        delete_topic=topics.operations.delete,
        forget_topic=topics.operations.forget,
        forget_grants=topics.operations.forget_grants,
        discard_topic=topics.operations.discard,
        unload_topic=topics.operations.unload,
        terminate_topic=topics.operations.terminate,
        skip_damage=topics.operations.skip_damage,
        probe=probe,
        loop_share=loop_share,
        table_reports=table_reports,
        metrics=metrics,
    )
