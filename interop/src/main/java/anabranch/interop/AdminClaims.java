package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.clientError;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.status;
import static anabranch.interop.Words.until;

import java.time.Duration;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.pulsar.client.admin.ScalableTopics;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.common.policies.data.ScalableSubscriptionType;
import org.apache.pulsar.common.policies.data.ScalableTopicMetadata;
import org.apache.pulsar.common.policies.data.ScalableTopicMetadata.SegmentInfo;
import org.apache.pulsar.common.policies.data.ScalableTopicStats;

/** Scalable topics through the admin client. */
final class AdminClaims {
    private static final Duration SOON = Duration.ofSeconds(Words.WAIT_S);

    private final Lab lab;
    private final ScalableTopics topics;

    AdminClaims(Lab lab) {
        this.lab = lab;
        this.topics = lab.topics();
    }

    Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("segments share the hash space", this::creates);
        claims.put("a name is taken once", this::taken);
        claims.put("topics are listed by their properties", this::lists);
        claims.put("a topic that is not there is not found", this::absent);
        claims.put("splits and merges change the layout", this::reshapes);
        claims.put("bad splits and merges are the callers fault", this::refuses);
        claims.put("stats count segments and consumers", this::stats);
        claims.put("subscriptions come before consumers and go", this::subscriptions);
        claims.put("a queue subscription is made for every segment", this::queueSubscription);
        claims.put("seek goes back over sealed segments", this::seeks);
        claims.put("seek moves connected consumers", this::seeksConnected);
        claims.put("skip all leaves nothing", this::skips);
        claims.put("a deleted topic is gone and starts anew", this::deletes);
        claims.put("segments are there for the admin too", this::segments);
        claims.put("every call has an asynchronous twin", this::asynchronous);
        return claims;
    }

    private void creates(String name) throws Exception {
        for (int count : new int[] {1, 3, 4}) {
            String topic = lab.create(name + count, count);
            ScalableTopicMetadata found = lab.metadata(topic);
            same(0L, found.getEpoch());
            same((long) count, found.getNextSegmentId());
            same(count, found.getSegments().size());
            int next = 0;
            for (SegmentInfo segment : lab.active(topic)) {
                same(next, segment.getHashRange().getStart());
                next = segment.getHashRange().getEnd() + 1;
                same("ACTIVE", segment.getState());
                check(segment.getParentIds().isEmpty() && segment.getChildIds().isEmpty(), "no relatives yet");
                check(segment.getSealedAtEpoch() <= 0, "not sealed");
            }
            same(0x10000, next);
        }
    }

    private void taken(String name) throws Exception {
        String topic = lab.create(name, 1);
        status(409, () -> topics.createScalableTopic(topic, 1));
        clientError(() -> topics.createScalableTopic(topic + "-none", 0));
        clientError(() -> topics.createScalableTopic(topic + "-none", -3));
        check(!topics.listScalableTopics("public/default").contains(topic + "-none"), "a refused topic is not made");
    }

    private void lists(String name) throws Exception {
        String base = "topic://public/default/" + name;
        topics.createScalableTopic(base + "-a", 1, Map.of("team", name, "env", "prod"));
        topics.createScalableTopic(base + "-b", 1, Map.of("team", name, "env", "test"));
        topics.createScalableTopic(base + "-c", 1);
        List<String> all = topics.listScalableTopics("public/default");
        check(all.containsAll(List.of(base + "-a", base + "-b", base + "-c")), "all are listed: " + all);
        same(Map.of("team", name, "env", "prod"), lab.metadata(base + "-a").getProperties());
        same(Set.of(base + "-a", base + "-b"), withProperties(Map.of("team", name)));
        same(Set.of(base + "-b"), withProperties(Map.of("team", name, "env", "test")));
        same(Set.of(), withProperties(Map.of("team", name, "env", "none")));
        lab.split(base + "-a", 0);
        same(Map.of("team", name, "env", "prod"), lab.metadata(base + "-a").getProperties());
    }

    private Set<String> withProperties(Map<String, String> properties) throws Exception {
        return new HashSet<>(topics.listScalableTopicsByProperties("public/default", properties));
    }

    private void absent(String name) throws Exception {
        String topic = "topic://public/default/" + name;
        status(404, () -> topics.getMetadata(topic));
        status(404, () -> topics.getStats(topic));
        status(404, () -> topics.splitSegment(topic, 0));
        status(404, () -> topics.mergeSegments(topic, 0, 1));
        status(404, () -> topics.createSubscription(topic, "s", ScalableSubscriptionType.STREAM));
        status(404, () -> topics.deleteScalableTopic(topic));
    }

    private void reshapes(String name) throws Exception {
        String topic = lab.create(name, 1);
        topics.splitSegment(topic, 0);
        ScalableTopicMetadata split = lab.metadata(topic);
        same(1L, split.getEpoch());
        same(3L, split.getNextSegmentId());
        check(split.getSegments().get(0L).isSealed(), "the parent is sealed");
        check(split.getSegments().get(0L).getSealedAtEpoch() > 0, "and knows since when");
        same(List.of(1L, 2L), split.getSegments().get(0L).getChildIds());
        same(List.of(0L), split.getSegments().get(1L).getParentIds());
        same(0x7fff, split.getSegments().get(1L).getHashRange().getEnd());
        topics.mergeSegments(topic, 2, 1);
        same(List.of(3L), lab.activeIds(topic));
        same(2L, lab.metadata(topic).getEpoch());
        same(Set.of(1L, 2L), new HashSet<>(lab.metadata(topic).getSegments().get(3L).getParentIds()));
    }

    private void refuses(String name) throws Exception {
        String topic = lab.create(name, 4);
        topics.splitSegment(topic, 0);
        ScalableTopicMetadata before = lab.metadata(topic);
        clientError(() -> topics.splitSegment(topic, 99));
        clientError(() -> topics.splitSegment(topic, 0));
        clientError(() -> topics.splitSegment(topic, -1));
        clientError(() -> topics.mergeSegments(topic, 1, 1));
        clientError(() -> topics.mergeSegments(topic, 1, 3));
        clientError(() -> topics.mergeSegments(topic, 0, 1));
        clientError(() -> topics.mergeSegments(topic, 1, 99));
        same(before, lab.metadata(topic));
    }

    private void stats(String name) throws Exception {
        String topic = lab.create(name, 2);
        lab.split(topic, 0);
        try (StreamConsumer<String> one = lab.stream(topic, "s").consumerName("one").subscribe();
                StreamConsumer<String> two = lab.stream(topic, "s").consumerName("two").subscribe()) {
            ScalableTopicStats stats = topics.getStats(topic);
            same(1L, stats.getEpoch());
            same(4, stats.getTotalSegments());
            same(3, stats.getActiveSegments());
            same(1, stats.getSealedSegments());
            same(4, stats.getSegments().size());
            same("SEALED", stats.getSegments().get(0L).state());
            check(stats.getSegments().get(1L).name().endsWith("/" + name + "/8000-ffff-1"),
                    "a segment's name: " + stats.getSegments().get(1L).name());
            same(2, stats.getSubscriptions().get("s").consumerCount());
        }
    }

    private void subscriptions(String name) throws Exception {
        String topic = lab.create(name, 2);
        topics.createSubscription(topic, "early", ScalableSubscriptionType.STREAM);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, history, 10).send(40);
            lab.split(topic, 1);
            try (Receiver receiver = Receiver.of(lab.stream(topic, "early").subscribe(), history)) {
                history.awaitAll("everything sent after it was made arrives");
            }
            history.checkOrder();
            until("it is deleted once nobody uses it", () -> {
                try {
                    topics.deleteSubscription(topic, "early");
                    return true;
                } catch (org.apache.pulsar.client.admin.PulsarAdminException busy) {
                    return false;
                }
            });
            until("nothing of it is left", () -> !topics.getStats(topic).getSubscriptions().containsKey("early"));
        }
    }

    private void queueSubscription(String name) throws Exception {
        String topic = lab.create(name, 2);
        topics.createSubscription(topic, "q", ScalableSubscriptionType.QUEUE);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, history, 10).send(20);
            lab.merge(topic, 0);
            lab.split(topic, 0);
            try (Receiver receiver = Receiver.of(lab.queue(topic, "q").subscribe(), history)) {
                history.awaitAll("everything arrives");
            }
        }
    }

    private void seeks(String name) throws Exception {
        String topic = lab.create(name, 1);
        topics.createSubscription(topic, "s", ScalableSubscriptionType.QUEUE);
        try (Producer<String> producer = lab.producer(topic)) {
            long time = beforeAndAfterASplit(topic, producer);
            same(40, taken(topic, 40).size());
            topics.seekSubscription(topic, "s", time);
            check(taken(topic, 20).stream().allMatch(value -> value.startsWith("after")), "from that time on");
            topics.seekSubscription(topic, "s", 1);
            same(40, taken(topic, 40).size());
        }
    }

    /** Sends 20 messages, splits, sends 20 more; the time in between. */
    private long beforeAndAfterASplit(String topic, Producer<String> producer) throws Exception {
        new Sender(producer, new History(), 5, true, "before").send(20);
        lab.split(topic, 0);
        Words.pause(20);
        long time = System.currentTimeMillis();
        Words.pause(20);
        new Sender(producer, new History(), 5, true, "after").send(20);
        return time;
    }

    private Set<String> taken(String topic, int count) throws Exception {
        try (QueueConsumer<String> consumer = lab.queue(topic, "s").subscribe()) {
            Set<String> values = new HashSet<>(take(consumer, count));
            check(consumer.receive(Duration.ofMillis(300)) == null, "and no more");
            return values;
        }
    }

    private void seeksConnected(String name) throws Exception {
        String topic = lab.create(name, 1);
        try (Producer<String> producer = lab.producer(topic);
                QueueConsumer<String> consumer = lab.queue(topic, "s")
                        .acknowledgmentGroupTime(Duration.ZERO).subscribe()) {
            long time = beforeAndAfterASplit(topic, producer);
            take(consumer, 40);
            topics.seekSubscription(topic, "s", time);
            check(take(consumer, 20).stream().allMatch(value -> value.startsWith("after")), "from that time on");
            topics.seekSubscription(topic, "s", 1);
            same(40, new HashSet<>(take(consumer, 40)).size());
        }
    }

    private List<String> take(QueueConsumer<String> consumer, int count) throws Exception {
        List<String> values = new java.util.ArrayList<>();
        while (values.size() < count) {
            Message<String> message = consumer.receive(SOON);
            check(message != null, values.size() + " of " + count + " came");
            consumer.acknowledge(message.id());
            values.add(message.value());
        }
        return values;
    }

    private void skips(String name) throws Exception {
        String topic = lab.create(name, 2);
        topics.createSubscription(topic, "s", ScalableSubscriptionType.STREAM);
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, new History(), 5).send(20);
            lab.split(topic, 0);
            new Sender(producer, new History(), 5).send(20);
            topics.clearBacklog(topic, "s");
            History later = new History();
            new Sender(producer, later, 5, true, "later").send(10);
            try (StreamConsumer<String> consumer = lab.stream(topic, "s").subscribe()) {
                for (int n = 0; n < 10; n++) {
                    Message<String> message = consumer.receive(SOON);
                    check(message != null, "what was sent later comes");
                    later.received(message.value());
                    consumer.acknowledgeCumulative(message.id());
                }
                later.checkNothingIsLost();
            }
        }
    }

    private void deletes(String name) throws Exception {
        String topic = lab.create(name, 2);
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, new History(), 5).send(10);
        }
        lab.split(topic, 0);
        topics.createSubscription(topic, "s", ScalableSubscriptionType.STREAM);
        topics.deleteScalableTopic(topic);
        status(404, () -> topics.getMetadata(topic));
        until("it is not listed any more", () -> !topics.listScalableTopics("public/default").contains(topic));
        topics.createScalableTopic(topic, 1);
        same(0L, lab.metadata(topic).getEpoch());
        check(!topics.getStats(topic).getSubscriptions().containsKey("s"), "no subscription comes back");
        History history = new History();
        try (Producer<String> producer = lab.producer(topic);
                QueueConsumer<String> consumer = lab.queue(topic, "s").subscribe()) {
            new Sender(producer, history, 5).send(10);
            List<String> values = take(consumer, 10);
            check(consumer.receive(Duration.ofMillis(300)) == null, "nothing of the old topic comes");
            history.received(values);
            history.checkNothingIsLost();
        }
    }

    private void segments(String name) throws Exception {
        String topic = lab.create(name, 1);
        String segment = "segment://public/default/" + name + "/0000-ffff-0";
        topics.createSegment(segment, List.of());
        topics.createSubscription(topic, "s", ScalableSubscriptionType.QUEUE);
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, new History(), 5).send(10);
        }
        same(10L, topics.getSegmentSubscriptionBacklogAsync(segment, "s").get());
        topics.clearSegmentSubscriptionBacklogAsync(segment, "s").get();
        same(0L, topics.getSegmentSubscriptionBacklogAsync(segment, "s").get());
        topics.seekSegmentSubscriptionAsync(segment, "s", 1).get();
        same(10L, topics.getSegmentSubscriptionBacklogAsync(segment, "s").get());
        status(409, () -> topics.terminateSegment(segment));
        status(409, () -> topics.deleteSegment(segment, true));
        lab.split(topic, 0);
        topics.terminateSegment(segment);
        same(2, lab.activeIds(topic).size());
        topics.deleteScalableTopic(topic);
        topics.deleteSegment(segment, false);
    }

    private void asynchronous(String name) throws Exception {
        String topic = "topic://public/default/" + name;
        String segment = "segment://public/default/" + name + "/0000-ffff-0";
        topics.createScalableTopicAsync(topic, 1, Map.of("name", name)).get();
        check(topics.listScalableTopicsAsync("public/default").get().contains(topic), "it is listed");
        same(List.of(topic), topics.listScalableTopicsByPropertiesAsync("public/default", Map.of("name", name)).get());
        topics.createSegmentAsync(segment, List.of("q")).get();
        topics.createSubscriptionAsync(topic, "s", ScalableSubscriptionType.STREAM).get();
        topics.splitSegmentAsync(topic, 0).get();
        topics.terminateSegmentAsync(segment).get();
        topics.mergeSegmentsAsync(topic, 1, 2).get();
        same(2L, topics.getMetadataAsync(topic).get().getEpoch());
        same(Set.of("q", "s"), topics.getStatsAsync(topic).get().getSubscriptions().keySet());
        topics.deleteSubscriptionAsync(topic, "s").get();
        same(Set.of("q"), topics.getStatsAsync(topic).get().getSubscriptions().keySet());
        topics.deleteScalableTopicAsync(topic).get();
        check(!topics.listScalableTopicsAsync("public/default").get().contains(topic), "it is gone");
        topics.deleteSegmentAsync(segment, true).get();
    }
}
