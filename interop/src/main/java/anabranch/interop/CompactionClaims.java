package anabranch.interop;

import static anabranch.interop.Words.WAIT_S;
import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.until;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.RegexSubscriptionMode;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;

/**
 * Claims about keyed compaction, non-persistent topics and consumers by pattern, checked with Pulsar's Java clients.
 * Arguments: service URL, admin URL and, if not all claims are to be checked, a part of the names of those that are.
 */
public final class CompactionClaims {
    private static PulsarClient client;
    private static PulsarAdmin admin;

    public static void main(String[] arguments) throws Exception {
        client = PulsarClient.builder().serviceUrl(arguments[0]).operationTimeout(20, TimeUnit.SECONDS).build();
        admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build();
        int failed = 0;
        for (Map.Entry<String, Claim> claim : claims().entrySet()) {
            String name = claim.getKey();
            if (arguments.length > 2 && !name.contains(arguments[2])) {
                continue;
            }
            String topic = "java-" + name.replace(' ', '-') + "-" + System.nanoTime();
            try {
                claim.getValue().check(topic);
                System.out.println("ok " + name);
            } catch (Throwable error) {
                failed++;
                System.out.println("FAILED " + name + ": " + error);
                error.printStackTrace();
            }
        }
        admin.close();
        client.close();
        System.exit(failed == 0 ? 0 : 1);
    }

    private static Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("the admin client compacts and sees how it went", CompactionClaims::administered);
        claims.put("batches keep the latest of each key", CompactionClaims::batches);
        claims.put("null values delete their keys", CompactionClaims::nulls);
        claims.put("compacted consumers go on where they were", CompactionClaims::consumers);
        claims.put("table views are filled from what is left", CompactionClaims::tableViews);
        claims.put("thresholds of namespaces", CompactionClaims::thresholds);
        claims.put("non-persistent topics for every type", CompactionClaims::nonPersistent);
        claims.put("patterns are told at once of topics that come and go", CompactionClaims::patterns);
        return claims;
    }

    // -- compaction

    private static void administered(String topic) throws Exception {
        send(topic, "a", "1", "b", "1", "a", "2");
        check(admin.topics().compactionStatus(topic).status == LongRunningProcessStatus.Status.NOT_RUN, "none has run");
        compact(topic);
        var stats = admin.topics().getStats(topic).getCompaction();
        same(1L, stats.getLastCompactionRemovedEventCount());
        check(stats.getLastCompactionSucceedTimestamp() > 0, "it is told when");
        same(2L, admin.topics().getInternalStats(topic).compactedLedger.entries);
        // Its own subscription is in nobody's way.
        admin.topics().delete(topic);
        check(!admin.topics().getList("public/default").contains("persistent://public/default/" + topic), "it is deleted");
    }

    private static void batches(String topic) throws Exception {
        for (CompressionType kind : CompressionType.values()) {
            String name = topic + "-" + kind;
            try (Producer<String> producer = client.newProducer(Schema.STRING).topic(name).compressionType(kind)
                    .batchingMaxPublishDelay(1, TimeUnit.MINUTES).create()) {
                batch(producer, "a", "1", "b", "1", "c", "1", "d", "1");
                batch(producer, "a", "2", "c", "", "e", "1", "b", "2", "b", "");
                List<MessageId> ids = new ArrayList<>();
                try (Reader<String> all = reader(name, MessageId.earliest, false)) {
                    while (all.hasMessageAvailable()) {
                        ids.add(all.readNext(WAIT_S, TimeUnit.SECONDS).getMessageId());
                    }
                }
                same(9, ids.size());
                compact(name);
                try (Reader<String> reader = reader(name, MessageId.earliest, true)) {
                    same("d=1 a=2 e=1", rest(reader));
                    batch(producer, "a", "3");
                    same("a=3", rest(reader));
                    reader.seek(MessageId.earliest);
                    same("d=1 a=2 e=1 a=3", rest(reader));
                }
                // An id that is there, and one that is not any more.
                try (Reader<String> reader = reader(name, ids.get(3), true)) {
                    same("a=2 e=1 a=3", rest(reader));
                }
                try (Reader<String> reader = reader(name, ids.get(7), true)) {
                    same("a=3", rest(reader));
                }
            }
        }
    }

    private static void nulls(String topic) throws Exception {
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            producer.newMessage().key("a").value("1").send();
            producer.newMessage().key("b").value("1").send();
            producer.newMessage().key("a").value(null).send();
        }
        compact(topic);
        try (Reader<String> reader = reader(topic, MessageId.earliest, true)) {
            same("b=1", rest(reader));
        }
        send(topic, "b", "");
        compact(topic);
        try (Reader<String> reader = reader(topic, MessageId.earliest, true)) {
            check(!reader.hasMessageAvailable(), "nothing is left");
            send(topic, "c", "1");
            same("c=1", rest(reader));
        }
    }

    private static void consumers(String topic) throws Exception {
        for (int n = 0; n < 20; n++) {
            send(topic, "k" + n % 5, "" + n);
        }
        compact(topic);
        try (Consumer<String> consumer = compacted(topic, SubscriptionType.Failover)) {
            for (int n = 15; n < 18; n++) {
                Message<String> message = next(consumer);
                same("" + n, message.getValue());
                consumer.acknowledge(message);
            }
        }
        try (Consumer<String> consumer = compacted(topic, SubscriptionType.Failover)) {
            same("18", next(consumer).getValue());
            same("19", next(consumer).getValue());
        }
        try {
            client.newConsumer(Schema.STRING).topic("non-persistent://public/default/" + topic).subscriptionName("s")
                    .readCompacted(true).subscribe().close();
            throw new AssertionError("a non-persistent topic was read compacted");
        } catch (PulsarClientException expected) {
            // Refused by the client or the broker.
        }
    }

    private static void tableViews(String topic) throws Exception {
        Map<String, String> expected = new TreeMap<>();
        for (int n = 0; n < 200; n++) {
            send(topic, "k" + n % 50, "" + n);
            expected.put("k" + n % 50, "" + n);
        }
        send(topic, "k7", "");
        expected.remove("k7");
        compact(topic);
        same(49L, admin.topics().getInternalStats(topic).compactedLedger.entries);
        // By its full name: with a short one this client neither reads compacted nor waits for what is there.
        String name = "persistent://public/default/" + topic;
        try (TableView<String> view = client.newTableView(Schema.STRING).topic(name).create()) {
            Map<String, String> found = new TreeMap<>();
            view.forEach(found::put);
            same(expected, found);
            send(topic, "k8", "new");
            until("in time", () -> "new".equals(view.get("k8")));
        }
    }

    private static void thresholds(String topic) throws Exception {
        String namespace = "public/java-threshold-" + System.nanoTime();
        admin.namespaces().createNamespace(namespace);
        check(admin.namespaces().getCompactionThreshold(namespace) == null, "none is set");
        admin.namespaces().setCompactionThreshold(namespace, 1000L);
        same(1000L, admin.namespaces().getCompactionThreshold(namespace));
        admin.namespaces().removeCompactionThreshold(namespace);
        check(admin.namespaces().getCompactionThreshold(namespace) == null, "none is set");
    }

    // -- non-persistent topics

    private static void nonPersistent(String topic) throws Exception {
        for (SubscriptionType type : SubscriptionType.values()) {
            String name = "non-persistent://public/default/" + topic + "-" + type;
            try (Producer<String> producer = client.newProducer(Schema.STRING).topic(name).create()) {
                producer.send("too early");
                try (Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(name).subscriptionName("s")
                        .subscriptionType(type).subscribe()) {
                    for (int n = 0; n < 10; n++) {
                        producer.newMessage().key("k" + n).value("" + n).send();
                    }
                    for (int n = 0; n < 10; n++) {
                        Message<String> message = next(consumer);
                        same("" + n, message.getValue());
                        consumer.acknowledge(message);
                    }
                    check(admin.topics().getList("public/default", null).contains(name), "it is listed");
                    var stats = admin.topics().getStats(name);
                    same(11L, stats.getMsgInCounter());
                    same(type, SubscriptionType.valueOf(stats.getSubscriptions().get("s").getType()));
                    try {
                        consumer.seek(MessageId.earliest);
                        throw new AssertionError("a seek on a topic that keeps nothing");
                    } catch (PulsarClientException expected) {
                        // Said so.
                    }
                }
            }
            admin.topics().delete(name, true);
        }
        String parts = "non-persistent://public/default/" + topic + "-parts";
        admin.topics().createPartitionedTopic(parts, 3);
        same(3, admin.topics().getPartitionedTopicMetadata(parts).partitions);
        admin.topics().deletePartitionedTopic(parts);
    }

    // -- patterns

    private static void patterns(String topic) throws Exception {
        String namespace = "public/java-pattern-" + System.nanoTime();
        admin.namespaces().createNamespace(namespace);
        Set<String> seen = new HashSet<>();
        // It looks by itself once in an hour: what it hears of before, it was told.
        try (Consumer<String> consumer = client.newConsumer(Schema.STRING)
                .topicsPattern(Pattern.compile("persistent://" + namespace + "/a-.*")).subscriptionName("s")
                .patternAutoDiscoveryPeriod(1, TimeUnit.HOURS)
                .subscriptionTopicsMode(RegexSubscriptionMode.PersistentOnly)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            admin.topics().createPartitionedTopic("persistent://" + namespace + "/a-parts", 2);
            for (String name : List.of("a-1", "b-1", "a-2", "a-parts")) {
                send("persistent://" + namespace + "/" + name, "k", name);
            }
            for (int n = 0; n < 3; n++) {
                seen.add(next(consumer).getValue());
            }
            same(Set.of("a-1", "a-2", "a-parts"), seen);
            admin.topics().delete("persistent://" + namespace + "/a-1", true);
            send("persistent://" + namespace + "/a-2", "k", "again");
            same("again", next(consumer).getValue());
            // Nobody of the pattern's makes it anew.
            until("in time", () -> !admin.topics().getList(namespace).contains("persistent://" + namespace + "/a-1"));
            TimeUnit.SECONDS.sleep(1);
            check(!admin.topics().getList(namespace).contains("persistent://" + namespace + "/a-1"), "it stays deleted");
        }
    }

    // -- words

    private static void send(String topic, String... pairs) throws Exception {
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create()) {
            for (int n = 0; n < pairs.length; n += 2) {
                producer.newMessage().key(pairs[n]).value(pairs[n + 1]).send();
            }
        }
    }

    private static void batch(Producer<String> producer, String... pairs) throws Exception {
        for (int n = 0; n < pairs.length; n += 2) {
            producer.newMessage().key(pairs[n]).value(pairs[n + 1]).sendAsync();
        }
        producer.flush();
    }

    private static void compact(String topic) throws Exception {
        admin.topics().triggerCompaction(topic);
        until("compacted", 60, () -> admin.topics().compactionStatus(topic).status != LongRunningProcessStatus.Status.RUNNING);
        LongRunningProcessStatus said = admin.topics().compactionStatus(topic);
        check(said.status == LongRunningProcessStatus.Status.SUCCESS, said.status + " " + said.lastError);
    }

    private static Reader<String> reader(String topic, MessageId start, boolean isCompacted) throws Exception {
        return client.newReader(Schema.STRING).topic(topic).startMessageId(start).readCompacted(isCompacted).create();
    }

    private static Consumer<String> compacted(String topic, SubscriptionType type) throws Exception {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscriptionType(type)
                .readCompacted(true).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    private static String rest(Reader<String> reader) throws Exception {
        List<String> found = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            Message<String> message = reader.readNext(WAIT_S, TimeUnit.SECONDS);
            check(message != null, "nothing came after " + found);
            found.add(message.getKey() + "=" + message.getValue());
        }
        return String.join(" ", found);
    }

    private static <T> Message<T> next(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
        check(message != null, "nothing came within " + WAIT_S + " s");
        return message;
    }
}
