package anabranch.bench;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;
import org.apache.pulsar.common.policies.data.ScalableTopicMetadata.SegmentInfo;

/** How long changes of a scalable topic take, seen by V5 clients that go on working meanwhile. */
final class Reshaping {
    private static final int KEYS = 100;

    private Reshaping() {
    }

    /** Splits under a steady rate: the admin call, and when the first message sent to a child is confirmed. */
    static void split(Options options) throws Exception {
        int rounds = (int) options.number("rounds", 10);
        String topic = options.text("topic");
        try (V5Target target = new V5Target(options)) {
            Load.Span span = new Load.Span();
            Times async = splits(target, topic + "-async", options, rounds, true);
            Times sync = splits(target, topic + "-sync", options, rounds, false);
            span.end();
            List<Double> calls = new ArrayList<>(async.calls);
            calls.addAll(sync.calls);
            span.result(async.sent + sync.sent, (async.sent + sync.sent) * 1024, String.format(
                    ",\"call_p50_ms\":%.2f,\"call_max_ms\":%.2f,\"merge_p50_ms\":%.2f"
                            + ",\"child_async_p50_ms\":%.2f,\"child_sync_p50_ms\":%.2f",
                    median(calls), Collections.max(calls), median(async.merges), median(async.children),
                    median(sync.children)));
        }
    }

    private static final class Times {
        final List<Double> calls = new ArrayList<>();
        final List<Double> merges = new ArrayList<>();
        final List<Double> children = new ArrayList<>();
        long sent;
    }

    private static Times splits(V5Target target, String topic, Options options, int rounds, boolean async)
            throws Exception {
        Times times = new Times();
        target.create(topic);
        // The newest segment that a message was confirmed in, and when the first one was.
        AtomicLong newest = new AtomicLong(-1);
        AtomicLong since = new AtomicLong();
        try (Producer<byte[]> producer = target.producer(topic, options)) {
            Pace pace = new Pace(producer, (int) options.number("rate", 1_000), async, id -> {
                long segment = segment(id);
                if (segment > newest.get()) {
                    since.set(System.nanoTime());
                    newest.set(segment);
                }
            });
            Thread.sleep((long) (1000 * options.seconds("warmup", 3)));
            for (int round = 0; round < rounds; round++) {
                long before = newest.get();
                long parent = active(target, topic).get(0);
                long start = System.nanoTime();
                target.admin.scalableTopics().splitSegment(topic, parent);
                times.calls.add((System.nanoTime() - start) / 1e6);
                while (newest.get() <= before) {
                    Thread.sleep(1);
                }
                times.children.add((since.get() - start) / 1e6);
                Thread.sleep(500);
                List<Long> ids = active(target, topic);
                long merging = System.nanoTime();
                target.admin.scalableTopics().mergeSegments(topic, ids.get(0), ids.get(1));
                times.merges.add((System.nanoTime() - merging) / 1e6);
                Thread.sleep(500);
            }
            times.sent = pace.stop();
        }
        return times;
    }

    private static List<Long> active(V5Target target, String topic) throws Exception {
        return target.admin.scalableTopics().getMetadata(topic).getSegments().values().stream()
                .filter(SegmentInfo::isActive).sorted(Comparator.comparing(s -> s.getHashRange().getStart()))
                .map(SegmentInfo::getSegmentId).toList();
    }

    /** The client shows a message's segment in the text of its id only. */
    private static long segment(MessageId id) {
        String text = id.toString();
        int at = text.indexOf("segment");
        int from = at;
        while (!Character.isDigit(text.charAt(from))) {
            from++;
        }
        int to = from;
        while (to < text.length() && Character.isDigit(text.charAt(to))) {
            to++;
        }
        return Long.parseLong(text, from, to, 10);
    }

    /** A stream consumer leaves for good: when the other one has received every key again. */
    static void leave(Options options) throws Exception {
        String topic = options.text("topic");
        try (V5Target target = new V5Target(options); PulsarClient one = V5Target.newClient(options)) {
            target.create(topic);
            Set<String> seen = ConcurrentHashMap.newKeySet();
            Drain stays = new Drain(consumer(one, topic, "stays"), seen);
            PulsarClient two = V5Target.newClient(options);
            Set<String> others = ConcurrentHashMap.newKeySet();
            Drain leaves = new Drain(consumer(two, topic, "leaves"), others);
            Producer<byte[]> producer = target.producer(topic, options);
            Pace pace = new Pace(producer, (int) options.number("rate", 1_000), true, id -> { });
            while (others.size() < KEYS / 4) {
                Thread.sleep(10);
            }
            Thread.sleep(1000);
            Load.Span span = new Load.Span();
            long start = System.nanoTime();
            leaves.close();
            two.close();
            seen.clear();
            while (seen.size() < KEYS) {
                Thread.sleep(1);
                if (System.nanoTime() - start > 120e9) {
                    throw new IllegalStateException("its segments never moved");
                }
            }
            double seconds = (System.nanoTime() - start) / 1e9;
            span.end();
            stays.close();
            long sent = pace.stop();
            span.result(sent, sent * 1024, String.format(",\"moved_seconds\":%.3f", seconds));
        }
    }

    private static StreamConsumer<byte[]> consumer(PulsarClient client, String topic, String name) throws Exception {
        for (int tries = 1;; tries++) {
            try {
                return client.newStreamConsumer(Schema.bytes()).topic(topic).subscriptionName("s").consumerName(name)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
            } catch (PulsarClientException busy) {
                // The one that must give way may not have heard of it yet.
                if (tries == 10) {
                    throw busy;
                }
                Thread.sleep(200);
            }
        }
    }

    private static double median(List<Double> values) {
        List<Double> ordered = values.stream().sorted().toList();
        return ordered.get(ordered.size() / 2);
    }

    interface Confirmed {
        void at(MessageId id);
    }

    /** Sends keyed messages at a steady rate from a thread of its own, one by one or without waiting. */
    private static final class Pace implements Runnable {
        private final Producer<byte[]> producer;
        private final long gap;
        private final boolean async;
        private final Confirmed confirmed;
        private final Thread thread = new Thread(this, "pace");
        private volatile boolean ends;
        private long sent;

        Pace(Producer<byte[]> producer, int rate, boolean async, Confirmed confirmed) {
            this.producer = producer;
            this.gap = 1_000_000_000L / rate;
            this.async = async;
            this.confirmed = confirmed;
            thread.start();
        }

        @Override
        public void run() {
            byte[] payload = Load.payload(1024);
            String[] keys = V5Target.keys(KEYS);
            long due = System.nanoTime();
            while (!ends) {
                String key = keys[(int) (sent++ % KEYS)];
                if (async) {
                    producer.async().newMessage().key(key).value(payload).send().whenComplete((id, error) -> {
                        Receipts.note(error);
                        if (error == null) {
                            confirmed.at(id);
                        }
                    });
                } else {
                    try {
                        confirmed.at(producer.newMessage().key(key).value(payload).send());
                    } catch (Exception error) {
                        Receipts.note(error);
                    }
                }
                due = Math.max(due + gap, System.nanoTime() - 10 * gap);
                for (long now; (now = System.nanoTime()) < due;) {
                    LockSupport.parkNanos(due - now);
                }
            }
        }

        long stop() throws Exception {
            ends = true;
            thread.join();
            producer.async().flush().join();
            producer.close();
            Receipts.check();
            return sent;
        }
    }

    /** Receives, acknowledges and notes the keys. */
    private static final class Drain implements Runnable {
        private final StreamConsumer<byte[]> consumer;
        private final Set<String> seen;
        private final Thread thread = new Thread(this, "drain");
        private volatile boolean ends;

        Drain(StreamConsumer<byte[]> consumer, Set<String> seen) {
            this.consumer = consumer;
            this.seen = seen;
            thread.start();
        }

        @Override
        public void run() {
            try {
                while (!ends) {
                    Message<byte[]> message = consumer.receive(Duration.ofMillis(20));
                    if (message != null) {
                        seen.add(message.key().orElse(""));
                        consumer.acknowledgeCumulative(message.id());
                    }
                }
            } catch (Exception closed) {
                // Only while closing.
            }
        }

        void close() throws Exception {
            ends = true;
            thread.join();
            consumer.close();
        }
    }
}
