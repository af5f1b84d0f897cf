package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.refused;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.until;

import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ChunkingPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionType;
import org.apache.pulsar.client.api.v5.config.ProducerAccessMode;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** V5 producers, and what they put into messages. */
final class ProducerClaims {
    private static final Duration SOON = Duration.ofSeconds(Words.WAIT_S);

    /** A value with a schema. */
    public static final class Order {
        public String item;
        public int count;

        @Override
        public boolean equals(Object other) {
            return other instanceof Order o && Objects.equals(item, o.item) && count == o.count;
        }

        @Override
        public int hashCode() {
            return Objects.hash(item, count);
        }
    }

    /** One that does not fit: the same field with another type. */
    public static final class OtherOrder {
        public int item;
        public String count;
    }

    private final Lab lab;

    ProducerClaims(Lab lab) {
        this.lab = lab;
    }

    Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("nothing sent at once is lost in splits and merges", topic -> throughChanges(topic, false));
        claims.put("synchronous sends keep every keys order", topic -> throughChanges(topic, true));
        claims.put("a topic is made on first use", this::madeOnFirstUse);
        claims.put("messages carry what was put in", this::contents);
        claims.put("messages without a key go round", this::withoutKeys);
        claims.put("every compression passes", this::compressions);
        claims.put("large messages arrive from their chunks", this::chunks);
        claims.put("one exclusive producer at a time", this::exclusive);
        claims.put("a fencing producer takes over", this::fencing);
        claims.put("json schemas are kept and guarded through splits", this::schemas);
        claims.put("a producer by name goes on with its sequence", this::sequence);
        claims.put("transactions are refused with an answer", this::transactions);
        claims.put("a deleted topic ends its producer", this::deleted);
        return claims;
    }

    private void throughChanges(String name, boolean inTurn) throws Exception {
        String topic = lab.create(name, 2);
        History history = new History();
        Random random = new Random(7);
        try (Producer<String> producer = lab.producer(topic);
                Receiver receiver = Receiver.of(lab.stream(topic, "s").subscribe(), history)) {
            Sender sender = new Sender(producer, history, 50, inTurn, "k").start(inTurn ? 0 : 500);
            for (int n = 0; n < 8; n++) {
                Words.pause(150);
                lab.reshape(topic, random, 6);
            }
            sender.finish();
            history.awaitAll("everything arrives");
        }
        history.checkNothingIsLost();
        if (inTurn) {
            history.checkOrder();
        }
    }

    private void madeOnFirstUse(String name) throws Exception {
        String topic = "topic://public/default/" + name;
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, history, 5).send(10);
        }
        check(lab.topics().listScalableTopics("public/default").contains(topic), "it is listed");
        try (Receiver receiver = Receiver.of(lab.stream(topic + "-too", "s").subscribe(), new History())) {
            check(!lab.activeIds(topic + "-too").isEmpty(), "a consumer makes its topic too");
        }
    }

    private void contents(String name) throws Exception {
        String topic = lab.create(name, 2);
        Instant happened = Instant.ofEpochMilli(1_700_000_000_123L);
        try (QueueConsumer<String> consumer = lab.queue(topic, "s").subscribe();
                Producer<String> producer = lab.client.newProducer(Schema.string()).topic(topic)
                        .producerName("writer").create()) {
            long before = System.currentTimeMillis();
            producer.newMessage().key("naïve key").value("größe ✓").property("a", "1").property("b", "")
                    .eventTime(happened).sequenceId(41).send();
            Message<String> message = consumer.receive(SOON);
            check(message != null, "it arrives");
            same("größe ✓", message.value());
            same("naïve key", message.key().orElse(""));
            same(Map.of("a", "1", "b", ""), message.properties());
            same(happened, message.eventTime().orElse(Instant.EPOCH));
            same(41L, message.sequenceId());
            check(message.publishTime().toEpochMilli() >= before - 1000, "published now");
            check(message.producerName().orElse("").startsWith("writer"), "by " + message.producerName());
            same(0, message.redeliveryCount());
            consumer.acknowledge(message.id());

            long sent = System.nanoTime();
            producer.newMessage().key("later").value("later").deliverAfter(Duration.ofMillis(800)).send();
            message = consumer.receive(SOON);
            check(message != null && message.value().equals("later"), "a delayed message comes");
            check(System.nanoTime() - sent > 700_000_000L, "but not before its time");
        }
    }

    private void withoutKeys(String name) throws Exception {
        String topic = lab.create(name, 4);
        try (QueueConsumer<String> consumer = lab.queue(topic, "s").subscribe();
                Producer<String> producer = lab.producer(topic)) {
            for (int n = 0; n < 40; n++) {
                producer.newMessage().value("n" + n).send();
            }
            java.util.Set<String> found = new java.util.HashSet<>();
            java.util.Set<String> where = new java.util.HashSet<>();
            while (found.size() < 40) {
                Message<String> message = consumer.receive(SOON);
                check(message != null, found.size() + " of 40 came");
                found.add(message.value());
                where.add(message.topic());
                consumer.acknowledge(message.id());
            }
            check(where.size() == 4 || where.size() == 1, "from every segment or the topic itself: " + where);
        }
    }

    private void compressions(String name) throws Exception {
        String topic = lab.create(name, 2);
        String text = "compress me ".repeat(300);
        try (QueueConsumer<String> consumer = lab.queue(topic, "s").subscribe()) {
            for (CompressionType type : CompressionType.values()) {
                try (Producer<String> producer = lab.client.newProducer(Schema.string()).topic(topic)
                        .compressionPolicy(CompressionPolicy.of(type)).create()) {
                    producer.newMessage().key(type.name()).value(type + text).send();
                }
                Message<String> message = consumer.receive(SOON);
                check(message != null, type + " arrives");
                same(type + text, message.value());
                consumer.acknowledge(message.id());
            }
        }
    }

    private void chunks(String name) throws Exception {
        String topic = lab.create(name, 1);
        byte[] large = new byte[11_000_000];
        new Random(1).nextBytes(large);
        try (StreamConsumer<byte[]> consumer = lab.client.newStreamConsumer(Schema.bytes()).topic(topic)
                        .subscriptionName("s").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscribe();
                Producer<byte[]> producer = lab.client.newProducer(Schema.bytes()).topic(topic)
                        .batchingPolicy(BatchingPolicy.ofDisabled())
                        .chunkingPolicy(ChunkingPolicy.builder().enabled(true).chunkSize(1_000_000).build()).create()) {
            for (int n = 0; n < 3; n++) {
                large[0] = (byte) n;
                producer.newMessage().key("large").value(large.clone()).send();
                lab.split(topic, 0);
            }
            for (int n = 0; n < 3; n++) {
                Message<byte[]> message = consumer.receive(SOON);
                check(message != null, "number " + n + " arrives");
                large[0] = (byte) n;
                check(java.util.Arrays.equals(large, message.value()), "number " + n + " is whole and in its place");
                consumer.acknowledgeCumulative(message.id());
            }
        }
    }

    private void exclusive(String name) throws Exception {
        String topic = lab.create(name, 2);
        try (Producer<String> first = exclusive(topic, ProducerAccessMode.EXCLUSIVE)) {
            first.newMessage().key("a").value("a:1").send();
            refused(Words.WAIT_S - 5, () -> exclusive(topic, ProducerAccessMode.EXCLUSIVE).close());
            refused(Words.WAIT_S - 5, () -> {
                try (Producer<String> shared = lab.producer(topic)) {
                    shared.newMessage().key("a").value("a:2").send();
                }
            });
            lab.split(topic, 0);
            for (int n = 0; n < 20; n++) {
                first.newMessage().key("k" + n).value("k" + n + ":1").send();
            }
            refused(Words.WAIT_S - 5, () -> exclusive(topic, ProducerAccessMode.EXCLUSIVE).close());
        }
        until("the next one is let in", () -> {
            try (Producer<String> next = exclusive(topic, ProducerAccessMode.EXCLUSIVE)) {
                next.newMessage().key("a").value("a:3").send();
                return true;
            } catch (org.apache.pulsar.client.api.v5.PulsarClientException busy) {
                return false;
            }
        });
    }

    private Producer<String> exclusive(String topic, ProducerAccessMode mode) throws Exception {
        return lab.client.newProducer(Schema.string()).topic(topic).accessMode(mode).create();
    }

    private void fencing(String name) throws Exception {
        String topic = lab.create(name, 1);
        Producer<String> first = exclusive(topic, ProducerAccessMode.EXCLUSIVE);
        first.newMessage().key("a").value("a:1").send();
        try (Producer<String> second = exclusive(topic, ProducerAccessMode.EXCLUSIVE_WITH_FENCING)) {
            second.newMessage().key("a").value("a:2").send();
            refused(Words.WAIT_S, () -> first.newMessage().key("a").value("a:3").send());
            second.newMessage().key("a").value("a:4").send();
        }
        first.close();
    }

    private void schemas(String name) throws Exception {
        String topic = lab.create(name, 1);
        Schema<Order> schema = Schema.json(Order.class);
        try (Producer<Order> producer = lab.client.newProducer(schema).topic(topic).create();
                QueueConsumer<Order> consumer = lab.client.newQueueConsumer(schema).topic(topic)
                        .subscriptionName("s").subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                        .subscribe()) {
            for (int n = 0; n < 6; n++) {
                Order order = new Order();
                order.item = "item" + n;
                order.count = n;
                producer.newMessage().key("k" + n).value(order).send();
                if (n % 2 == 1) {
                    lab.split(topic, 0);
                }
                Message<Order> message = consumer.receive(SOON);
                check(message != null, "it arrives");
                same(order, message.value());
                consumer.acknowledge(message.id());
            }
            refused(Words.WAIT_S - 5, () -> {
                try (Producer<OtherOrder> other = lab.client.newProducer(Schema.json(OtherOrder.class)).topic(topic)
                        .create()) {
                    for (int n = 0; n < 20; n++) {
                        other.newMessage().key("k" + n).value(new OtherOrder()).send();
                    }
                }
            });
        }
    }

    private void sequence(String name) throws Exception {
        String topic = lab.create(name, 1);
        try (Producer<String> producer = lab.client.newProducer(Schema.string()).topic(topic)
                .producerName("named").initialSequenceId(99).create()) {
            producer.newMessage().key("a").value("a:1").send();
            check(producer.lastSequenceId() >= 99, "goes on from the initial one: " + producer.lastSequenceId());
        }
        try (Producer<String> again = lab.client.newProducer(Schema.string()).topic(topic)
                .producerName("named").create()) {
            again.newMessage().key("a").value("a:2").send();
        }
    }

    private void transactions(String name) throws Exception {
        String topic = lab.create(name, 1);
        refused(Words.WAIT_S - 5, () -> {
            try (PulsarClient with = PulsarClient.builder().serviceUrl(lab.serviceUrl)
                    .operationTimeout(Duration.ofSeconds(Words.WAIT_S))
                    .transactionPolicy(TransactionPolicy.builder().timeout(Duration.ofSeconds(10)).build()).build()) {
                with.newTransaction();
            }
        });
        refused(Words.WAIT_S - 5, lab.client::newTransaction);
        try (Producer<String> producer = lab.producer(topic)) {
            producer.newMessage().key("a").value("a:1").send();
        }
    }

    private void deleted(String name) throws Exception {
        String topic = lab.create(name, 2);
        try (Producer<String> producer = lab.client.newProducer(Schema.string()).topic(topic)
                .sendTimeout(Duration.ofSeconds(5)).create()) {
            producer.newMessage().key("a").value("a:1").send();
            lab.topics().deleteScalableTopic(topic, true);
            refused(60, () -> producer.newMessage().key("a").value("a:2").send());
            Words.status(404, () -> lab.metadata(topic));
        }
    }
}
