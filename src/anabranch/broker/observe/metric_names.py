"""Every metric on `/metrics`: its kind and its help text. Pulsar's names where it has one, `anabranch_` for ours."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple


class Metric(NamedTuple):
    kind: Literal["gauge", "counter", "histogram", "summary", "untyped"]
    help: str


def _gauge(help: str) -> Metric:
    return Metric("gauge", help)


def _counter(help: str) -> Metric:
    return Metric("counter", help)


# Metrics of topics, or of namespaces where topics are not listed one by one.
_TOPICS: Final = {
    "pulsar_topics_count": _gauge("Open topics"),
    "pulsar_subscriptions_count": _gauge("Subscriptions"),
    "pulsar_producers_count": _gauge("Connected producers"),
    "pulsar_consumers_count": _gauge("Connected consumers"),
    "pulsar_rate_in": _gauge("Messages published a second, over ten seconds"),
    "pulsar_rate_out": _gauge("Messages sent to consumers a second, over ten seconds"),
    "pulsar_throughput_in": _gauge("Bytes published a second, over ten seconds"),
    "pulsar_throughput_out": _gauge("Bytes sent to consumers a second, over ten seconds"),
    "pulsar_average_msg_size": _gauge("Mean bytes of a message published lately"),
    "pulsar_in_messages_total": _counter("Messages published since the topic was opened"),
    "pulsar_in_bytes_total": _counter("Bytes published since the topic was opened"),
    "pulsar_out_messages_total": _counter(
        "Messages sent to consumers, of all subscriptions or of the one named"
    ),
    "pulsar_out_bytes_total": _counter("Bytes sent to consumers, of all subscriptions or of the one named"),
    "pulsar_msg_backlog": _gauge("Messages not acknowledged, summed over subscriptions"),
    "pulsar_storage_size": _gauge("Bytes stored"),
    "pulsar_storage_logical_size": _gauge("Bytes stored, counted once however often they are kept"),
    "pulsar_storage_backlog_size": _gauge(
        "Bytes that the slowest subscription has not acknowledged, by mean size"
    ),
}

_UPKEEP: Final = {
    "pulsar_storage_backlog_quota_limit": _gauge("The backlog quota in force, in bytes; -1 for none"),
    "pulsar_storage_backlog_quota_limit_time": _gauge("The backlog quota in force, in seconds; -1 for none"),
    "pulsar_storage_backlog_age_seconds": _gauge(
        "Age of the oldest message not acknowledged, as of the last check of quotas; -1 if there is none"
    ),
    "pulsar_storage_backlog_quota_exceeded_evictions_total": _counter(
        "How often messages were skipped because of a backlog quota, by its kind"
    ),
    "pulsar_broker_storage_backlog_quota_exceeded_evictions_total": _counter(
        "The same, of all topics that are open now"
    ),
    "pulsar_storage_backlog_quota_check_duration_seconds": Metric(
        "histogram", "Seconds of each check of the backlog quotas of all topics"
    ),
    "anabranch_readers_held_seconds": _gauge(
        "For how long readers have been held before one entry of a hidden write; topics with such writes only"
    ),
    "anabranch_broker_readers_held_max_seconds": _gauge(
        "The longest of that, of all topics that are open now"
    ),
    # Metrics of topics that were compacted since they were opened.
    "pulsar_compaction_removed_event_count": _gauge("Messages that compactions have left out"),
    "pulsar_compaction_succeed_count": _gauge("Compactions that have succeeded"),
    "pulsar_compaction_failed_count": _gauge("Compactions that have failed"),
    "pulsar_compaction_duration_time_in_mills": _gauge("Milliseconds that compactions took"),
    "pulsar_compaction_read_throughput": _gauge("Bytes a second read by compactions, over ten seconds"),
    "pulsar_compaction_write_throughput": _gauge("Bytes a second written by compactions, over ten seconds"),
    "pulsar_compaction_compacted_entries_count": _gauge("Entries that the last compaction has left"),
    "pulsar_compaction_compacted_entries_size": _gauge("Bytes that the last compaction has left"),
}

_SUBSCRIPTIONS: Final = {
    "pulsar_subscription_back_log": _gauge("Messages not acknowledged"),
    "pulsar_subscription_back_log_no_delayed": _gauge("Messages not acknowledged that are not delayed"),
    "pulsar_subscription_delayed": _gauge("Entries to be delivered later"),
    "pulsar_subscription_in_replay": _gauge("Entries waiting to be delivered again"),
    "pulsar_subscription_unacked_messages": _gauge("Messages delivered and not acknowledged"),
    "pulsar_subscription_blocked_on_unacked_messages": _gauge("1 while it waits for acknowledgements"),
    "pulsar_subscription_consumers_count": _gauge("Connected consumers"),
    "pulsar_subscription_msg_rate_out": _gauge("Messages sent to consumers a second"),
    "pulsar_subscription_msg_throughput_out": _gauge("Bytes sent to consumers a second"),
    "pulsar_subscription_msg_rate_redeliver": _gauge("Messages sent again a second"),
    "pulsar_subscription_msg_ack_rate": _gauge("Messages acknowledged a second"),
    "pulsar_subscription_msg_drop_rate": _gauge("Messages of a non-persistent topic dropped a second"),
    "pulsar_subscription_total_msg_expired": _gauge("Messages expired since the topic was opened"),
    "pulsar_subscription_last_expire_timestamp": _gauge("When messages last expired, in ms since 1970"),
    "pulsar_subscription_last_acked_timestamp": _gauge(
        "When a message was last acknowledged, in ms since 1970"
    ),
    "pulsar_subscription_last_consumed_timestamp": _gauge("When a message was last sent, in ms since 1970"),
    "pulsar_subscription_last_consumed_flow_timestamp": _gauge(
        "When messages were last asked for, in ms since 1970"
    ),
    "pulsar_subscription_last_mark_delete_advanced_timestamp": _gauge(
        "When its cursor last advanced, in ms since 1970"
    ),
    "anabranch_scalable_topic_producers": _gauge(
        "Producers of a scalable topic at this broker, by name: each counts once for all segments"
    ),
    "anabranch_scalable_topic_consumers": _gauge(
        "Consumers of a scalable topic at this broker, by subscription and name: each counts once for all segments"
    ),
    "anabranch_scalable_segment_entry_buckets": _gauge("Entry buckets of a segment"),
    "anabranch_scalable_segment_sharers": _gauge("Consumers that share the segment by entry buckets"),
    "anabranch_scalable_segment_bucket_reassignments_total": _counter(
        "Entry buckets that were given to another consumer"
    ),
    "anabranch_scalable_segment_buckets_withheld": _gauge(
        "Entry buckets with entries that wait for another consumer's acknowledgements or for an owner"
    ),
}

_CLIENTS: Final = {
    "pulsar_producer_msg_rate_in": _gauge("Messages published a second by one producer"),
    "pulsar_producer_msg_throughput_in": _gauge("Bytes published a second by one producer"),
    "pulsar_consumer_msg_rate_out": _gauge("Messages sent a second to one consumer"),
    "pulsar_consumer_msg_throughput_out": _gauge("Bytes sent a second to one consumer"),
    "pulsar_consumer_msg_rate_redeliver": _gauge("Messages sent a second again to one consumer"),
    "pulsar_consumer_unacked_messages": _gauge("Messages that one consumer holds unacknowledged"),
    "pulsar_consumer_available_permits": _gauge("Messages that one consumer has asked for"),
    "pulsar_consumer_blocked_on_unacked_messages": _gauge("1 while one consumer has to acknowledge first"),
}

_BROKER: Final = {
    "pulsar_broker_topics_count": _gauge("Open topics of this broker"),
    "pulsar_broker_subscriptions_count": _gauge("Subscriptions of this broker"),
    "pulsar_broker_producers_count": _gauge("Producers of this broker"),
    "pulsar_broker_consumers_count": _gauge("Consumers of this broker"),
    "pulsar_broker_rate_in": _gauge("Messages published a second"),
    "pulsar_broker_rate_out": _gauge("Messages sent to consumers a second"),
    "pulsar_broker_throughput_in": _gauge("Bytes published a second"),
    "pulsar_broker_throughput_out": _gauge("Bytes sent to consumers a second"),
    "pulsar_broker_in_bytes_total": _counter("Bytes published to the topics that are open now"),
    "pulsar_broker_out_bytes_total": _counter("Bytes sent to consumers of the topics that are open now"),
    "pulsar_broker_msg_backlog": _gauge("Messages not acknowledged, of all subscriptions"),
    "pulsar_broker_storage_size": _gauge("Bytes stored by open topics"),
    "pulsar_broker_storage_logical_size": _gauge("Bytes stored by open topics, counted once"),
    "pulsar_broker_publish_latency": Metric(
        "summary", "Milliseconds from an entry's arrival to its receipt, over the last minute"
    ),
    "pulsar_broker_throttled_connections": _gauge(
        "Connections that are not read until fewer of their own publishes are unanswered"
    ),
    "pulsar_broker_throttled_connections_global_limit": _gauge(
        "Connections that are not read until the disk has caught up with all that was published"
    ),
    "pulsar_active_connections": _gauge("Connections of clients"),
    "pulsar_connection_created_total_count": _counter("Connections since the start"),
    "pulsar_connection_create_success_count": _counter("Connections that were not refused"),
    "pulsar_connection_create_fail_count": _counter("Connections refused before they were signed in"),
    "pulsar_connection_closed_total_count": _counter("Connections that have ended"),
    "pulsar_authentication_success_total": _counter("Successful authentications, on both protocols"),
    "pulsar_authentication_failures_total": _counter("Failed authentications, by the reason"),
    "pulsar_expired_token_total": _counter("Tokens that had expired when sent, or on a connection"),
    "pulsar_expiring_token_minutes": Metric(
        "histogram", "For how many more minutes tokens are valid when they are sent"
    ),
    "pulsar_version_info": _gauge("1; the version is a label"),
    "anabranch_topic_pause_seconds": Metric(
        "histogram", "How long no broker served a topic that another one has handed over to this one"
    ),
    "anabranch_event_loop_lag_seconds": Metric(
        "histogram", "How late the event loop is, measured all the time"
    ),
    "anabranch_event_loop_turn_max_seconds": _gauge(
        "The longest time in the last minute for which one turn of the event loop delayed all others"
    ),
    "anabranch_event_loop_turn_cpu_max_seconds": _gauge(
        "The most processor time that one turn of the event loop used in the last minute"
    ),
    "anabranch_event_loop_slow_turns_total": _counter(
        "Turns of the event loop that used more than 50 ms of processor time; the log says in which code"
    ),
    "process_resident_memory_bytes": _gauge("Memory of the process"),
    "process_cpu_seconds_total": _counter("Processor time of the process"),
    "process_start_time_seconds": _gauge("When the process started, in seconds since 1970"),
    "process_open_fds": _gauge("Open files and sockets"),
    "process_max_fds": _gauge("How many files and sockets may be open"),
}

# For Pulsar's own dashboards, which draw each as a line.
WRITE_LATENCIES: Final = tuple(
    f"pulsar_storage_write_latency_{part}"
    for part in (
        "le_0_5",
        "le_1",
        "le_5",
        "le_10",
        "le_20",
        "le_50",
        "le_100",
        "le_200",
        "le_1000",
        "overflow",
    )
)

_LOG: Final = {
    **dict.fromkeys(
        WRITE_LATENCIES,
        _gauge(
            "Entries of the last minute that were on disk within this many ms, and not within the step before"
        ),
    ),
    "anabranch_log_accepting": _gauge("0 while only the disk reserve is left and nothing can be published"),
    "anabranch_log_files": _gauge("Files of the log"),
    "anabranch_log_disk_bytes": _gauge("Bytes of the log on disk, of all brokers that share its folder"),
    "anabranch_log_disk_free_bytes": _gauge("Bytes free on the disk"),
    "anabranch_log_live_bytes": _gauge("Bytes in the log that may still be read"),
    "anabranch_log_unconfirmed_bytes": _gauge("Bytes that are not yet on disk"),
    "anabranch_log_confirmed_bytes_total": _counter("Bytes written and synced"),
    "anabranch_log_commits_total": _counter("Commits written and synced"),
    "anabranch_log_removed_files_total": _counter("Files removed"),
    "anabranch_log_rewritten_bytes_total": _counter("Bytes copied to free the space around them"),
    "anabranch_log_tier_objects": _gauge("Files of the log that were moved to an object store"),
    "anabranch_log_tier_bytes": _gauge("Bytes of them"),
    "anabranch_log_tier_orphans": _gauge("Objects there that no index file names, as of the last look"),
    "anabranch_log_tier_moved_files_total": _counter("Files moved"),
    "anabranch_log_tier_moved_bytes_total": _counter("Bytes moved"),
    "anabranch_log_tier_failures_total": _counter(
        "Attempts to move files that failed; the files stay on the disk"
    ),
    "anabranch_log_tier_gets_total": _counter("Requests for parts of moved files"),
    "anabranch_log_tier_get_bytes_total": _counter("Bytes of moved files that were read"),
    "anabranch_log_tier_deletes_total": _counter("Requests that delete moved files"),
    "anabranch_log_tier_cache_bytes": _gauge("Bytes of moved files in memory"),
    "anabranch_log_object_puts_total": _counter("Requests to the object store that create an object"),
    "anabranch_log_object_gets_total": _counter("Requests to the object store that read"),
    "anabranch_log_object_lists_total": _counter("Requests to the object store that list"),
    "anabranch_log_object_deletes_total": _counter("Requests to the object store that delete"),
    "anabranch_log_object_hedges_total": _counter(
        "Creations asked for twice, because the first one took long"
    ),
    "anabranch_log_object_retries_total": _counter(
        "Creations asked for again, because nothing was known of them"
    ),
    "anabranch_log_object_put_bytes_total": _counter("Bytes sent to the object store"),
    "anabranch_log_object_get_bytes_total": _counter("Bytes read from the object store"),
    "anabranch_log_sync_duration_seconds": Metric("histogram", "Writing and syncing to disk, each time"),
    "anabranch_log_append_latency_seconds": Metric("histogram", "An entry until it is on disk and confirmed"),
    "anabranch_cache_bytes": _gauge("Bytes of recent entries in memory"),
    "anabranch_cache_bytes_max": _gauge("How many bytes of them there may be"),
    "anabranch_cache_hits_total": _counter("Reads of recent entries answered from memory"),
    "anabranch_cache_misses_total": _counter("Reads that had to go to the disk"),
}

_SCALABLE: Final = {
    "pulsar_scalable_topic_active_segments": _gauge("Active segments"),
    "pulsar_scalable_topic_auto_splits_total": _counter("Automatic splits"),
    "pulsar_scalable_topic_auto_merges_total": _counter("Automatic merges"),
    "pulsar_scalable_topic_split_suppressed_max_segments_total": _counter(
        "Suppressed splits: too many segments"
    ),
    "pulsar_scalable_topic_merge_suppressed_max_depth_total": _counter(
        "Suppressed merges: too many merges in their past"
    ),
    "anabranch_scalable_topic_rebuckets_total": _counter(
        "Segments replaced by one with another number of entry buckets"
    ),
    "anabranch_scalable_topic_policy_invalid": _gauge("1 for a topic whose policy contradicts itself"),
    "anabranch_scalable_unstamped_entries_total": _counter(
        "Entries published to segments with several entry buckets that were in no single one of them"
    ),
    "anabranch_scalable_segment_messages_per_entry": _gauge(
        "Messages in an entry of a single entry bucket, on average since the segment was opened"
    ),
    "anabranch_scalable_segment_drain_mode": _gauge(
        "Sealed segments that consumers share by entry buckets now"
    ),
    "anabranch_load_history_records_total": _counter("Records published to the topic of load history"),
    "anabranch_load_history_dropped_total": _counter("Records of load history that were not published"),
    "anabranch_scalable_topic_decisions_total": _counter(
        "Decisions about splits and merges, by their reason"
    ),
}

_BALANCER: Final = {
    "pulsar_lb_cpu_usage": _gauge("The share of its core that the event loop uses, in percent"),
    "pulsar_lb_memory_usage": _gauge("The process's share of the memory that it can have, in percent"),
    "pulsar_lb_directMemory_usage": _gauge("The share of maxPendingPublishBytes in use, in percent"),
    "pulsar_lb_bandwidth_in_usage": _gauge("The share of the network that publishing uses, in percent"),
    "pulsar_lb_bandwidth_out_usage": _gauge("The share of the network that consuming uses, in percent"),
    "anabranch_balancer_disk_usage": _gauge("The share of the disk's speed that the log uses, in percent"),
    "pulsar_lb_resource_usage": _gauge(
        "The load of the broker, 1 for a resource in full use: the largest share, and its moving average"
    ),
    "pulsar_lb_resource_usage_stats": _gauge(
        "Mean and standard deviation of the loads of all brokers, at the leader"
    ),
    "pulsar_lb_unload_broker_total": _counter("Brokers that gave bundles, each once in a round of shedding"),
    "pulsar_lb_unload_bundle_total": _counter("Bundles that were unloaded or transferred"),
    "pulsar_lb_unload_broker_breakdown_total": _counter(
        "Decisions to unload or transfer a bundle, or not to, by result and reason"
    ),
    "pulsar_lb_bundles_split_total": _counter("Bundles that were split"),
    "pulsar_lb_bundles_split_breakdown_total": _counter("Splits of bundles, by result and reason"),
    "pulsar_lb_assign_broker_breakdown_total": _counter("Assignments of bundles to brokers, by result"),
    "pulsar_lb_unload_latency_ms": Metric("histogram", "A move, at the bundle's source, until it is over"),
    "pulsar_lb_assign_latency_ms": Metric("histogram", "A move, at the bundle's destination"),
    "pulsar_lb_release_latency_ms": Metric("histogram", "Closing the topics of a bundle, at its source"),
    "pulsar_lb_disconnect_latency_ms": Metric(
        "histogram", "From closed topics to another owner, at the bundle's source"
    ),
    "pulsar_sunit_state_chn_owner_lookup_total": _counter(
        "Lookups of the owner of a bundle, by the bundle's state; all, and those that failed"
    ),
    "pulsar_sunit_state_chn_event_publish_ops_total": _counter(
        "Changes of bundles that this broker wrote, by kind; all, and those that failed"
    ),
    "pulsar_sunit_state_chn_subscribe_ops_total": _counter(
        "Changes of bundles that this broker read, by kind"
    ),
    "pulsar_sunit_state_chn_cleanup_ops_total": _counter("Repairs of bundles that failed"),
    "pulsar_sunit_state_chn_orphan_su_cleanup_ops_total": _counter(
        "Bundles that the leader gave another owner"
    ),
    "pulsar_sunit_state_chn_su_tombstone_cleanup_ops_total": _counter(
        "States of freed or deleted bundles that the leader removed"
    ),
    "pulsar_sunit_state_chn_owned_su_total": _gauge("Bundles that this broker owns"),
    "anabranch_bundle_states": _gauge("Bundles of the cluster, by their state"),
    "anabranch_bundle_lookups_waiting": _gauge("Lookups that wait for the owner of a bundle"),
    "anabranch_bundle_lookup_wait_seconds": Metric("histogram", "How long lookups waited for an owner"),
    "anabranch_bundle_channel_lag_seconds": _gauge("How long this broker has heard nothing of the channel"),
    "anabranch_bundle_channel_following": _gauge("1 while this broker follows the channel to its end"),
    "anabranch_bundle_changes_rejected_total": _counter("Changes in the channel that came too late to count"),
    "anabranch_bundle_repairs_total": _counter("What the leader repaired, by kind"),
    "anabranch_balancer_leading": _gauge("1 at the broker that leads the balancer"),
    "anabranch_balancer_term": _gauge("The newest term of a leader that the channel has shown"),
    "anabranch_balancer_safe_mode": _gauge("1 while nothing is moved or repaired: the metadata is in doubt"),
    "anabranch_balancer_load_reports_total": _counter("Load reports to the leader: sent, not due, or failed"),
}

_TABLES: Final = {
    "anabranch_table_lag_seconds": _gauge(
        "How long ago a topic's table had all of the topic; -1 if not since its writer started"
    ),
    "anabranch_table_files": _gauge("Files of a topic's table"),
    "anabranch_table_bytes": _gauge("Bytes of the files of a topic's table"),
    "anabranch_table_rows": _gauge("Rows of a topic's table"),
    "anabranch_table_version": _gauge("The newest version of a topic's table"),
    "anabranch_table_undecoded_total": _counter("Messages whose bytes are in the column `undecoded`"),
    "anabranch_table_failing": _gauge("1 while writing a topic's table fails"),
}

METRICS: Final = {
    **_TOPICS,
    **_UPKEEP,
    **_SUBSCRIPTIONS,
    **_CLIENTS,
    **_BROKER,
    **_LOG,
    **_SCALABLE,
    **_BALANCER,
    **_TABLES,
}
