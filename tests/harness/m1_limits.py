"""What Pulsar 5.0.0-M1 cannot do, by our tests: for each the entry of docs/client/known-peer-limits.md."""

from __future__ import annotations

URL = "PULSAR_M1_URL"
HTTP_PORT = "PULSAR_M1_HTTP_PORT"

# M1 does not auto-create scalable topics. These tests are about other things: their topics are created ahead.
MADE_AHEAD = {
    "test_queue_consumer": {
        "test_only_the_rest_of_a_batch_comes_again",
        "test_messages_handed_back_come_again_while_the_others_of_their_batch_are_at_work",
        "test_a_message_that_is_handed_back_too_often_ends_in_the_dead_letter_topic",
        "test_a_message_whose_time_has_run_out_goes_to_another_consumer",
    },
    "test_large_messages": {"test_a_large_message_arrives_whole_among_small_ones"},
    "test_client_schemas": {
        "test_a_schema_that_does_not_fit_is_refused_when_producer_and_consumer_are_opened",
        "test_a_value_that_does_not_fit_is_refused_and_nothing_is_sent",
        "test_dead_letters_are_read_with_the_schema_that_their_topic_is_read_with",
    },
    "test_client_encryption": {
        "test_keys_of_curves_serve_our_own_clients_on_scalable_topics",
        "test_without_the_key_a_consumer_fails_skips_or_delivers_as_told",
    },
}

ORDER = "Order is kept from one generation of segments to the next only"
GROUPS = "A group of checkpoint consumers is given everything at once"
CLASSIC_STREAMS = "Stream consumers cannot read classic topics"
NOT_MADE = "Topics are not made on first use"
LEAVING = "Consumers cannot say that they leave"
PROPERTIES = "Properties of a topic cannot be changed"
KEEPS = "Nothing can be made to be deleted at once"
# By module and test.
LIMITS = {
    "test_scalable_client": {
        "test_keys_keep_their_order_through_splits_and_merges_with_sends_in_flight": ORDER,
        "test_a_producer_that_comes_back_asks_sealed_ancestors_what_they_hold": (
            "A sealed segment does not tell what it holds of a producer"
        ),
        "test_a_checkpoint_group_gets_children_once_a_member_has_finished_their_parent": GROUPS,
        "test_a_consumer_that_leaves_hands_its_segments_over_at_once": LEAVING,
        "test_a_second_consumer_of_the_same_name_takes_the_session_over": (
            "A second consumer of one name does not take over"
        ),
        "test_a_deleted_topic_is_told_to_producers_and_consumers": "Nobody is told that a topic was deleted",
        "test_a_partitioned_classic_topic_is_read_in_order_by_the_same_client": CLASSIC_STREAMS,
        "test_a_missing_topic_is_made_only_when_asked_for": NOT_MADE,
    },
    "test_checkpoints": {
        "test_a_checkpoint_that_was_not_through_with_deleted_segments_is_told_which": KEEPS,
        "test_segments_that_were_read_to_their_ends_may_go_before_anybody_knew_that_these_were_the_ends": KEEPS,
        "test_a_checkpoint_outlives_splits_merges_and_the_deletion_of_what_was_read": KEEPS,
        "test_a_gap_in_a_living_segment_is_named": KEEPS,
        "test_a_reader_that_is_too_slow_is_told": KEEPS,
        "test_a_group_goes_on_from_a_lone_checkpoint_and_a_lone_reader_from_the_groups": GROUPS,
        "test_a_checkpoint_of_a_classic_topic_is_good_once_it_was_migrated": (
            "A migrated topic says that its partitions were sealed in epoch 0"
        ),
        "test_a_checkpoint_of_a_topic_that_was_deleted_and_made_again_is_refused": "Its topics have no ids",
    },
    "test_namespace_consumers": {
        "test_messages_of_a_topic_that_is_still_joining_are_acknowledged_and_handed_back": PROPERTIES,
        "test_a_cumulative_ack_leaves_what_was_delivered_after_the_message": LEAVING,
        "test_topics_join_and_leave_while_it_runs": "A deleted topic is listed for a while",
        "test_only_topics_with_all_the_properties_are_read_and_a_change_moves_them": PROPERTIES,
        "test_what_is_handed_back_comes_again_and_goes_to_its_topics_dead_letters_in_the_end": NOT_MADE,
        "test_acks_of_a_topic_that_leaves_are_stored_and_the_rest_is_there_for_others": PROPERTIES,
        "test_a_restarted_broker_costs_nothing_but_time": "One broker for all tests",
        "test_a_namespace_that_is_not_there_says_so": "A namespace that is not there is an empty one",
    },
    "test_our_producer": {
        "test_a_delayed_message_comes_when_it_is_due": "Delays are kept to a tick",
        "test_producers_that_want_a_topic_for_themselves": "Fencing takes a moment",
    },
    "test_large_messages": {"test_large_messages_of_pulsars_client_arrive_whole": CLASSIC_STREAMS},
    "test_client_schemas": {
        "test_older_and_newer_messages_are_read_in_order_by_a_consumer_of_either_version": CLASSIC_STREAMS,
    },
    "test_client_encryption": {
        "test_our_consumer_decrypts_what_their_producer_encrypted": CLASSIC_STREAMS,
    },
}
