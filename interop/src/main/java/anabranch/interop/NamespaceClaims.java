package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.refused;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.until;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.QueueConsumerBuilder;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumerBuilder;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** V5 consumers of a whole namespace: topics join and leave them. Each claim has a namespace of its own. */
final class NamespaceClaims {
    private static final Duration SOON = Duration.ofSeconds(Words.WAIT_S);
    private static final Duration A_MOMENT = Duration.ofMillis(700);

    private final Lab lab;
    private final HttpClient http = HttpClient.newBuilder().followRedirects(HttpClient.Redirect.NORMAL).build();
    private int sent;

    NamespaceClaims(Lab lab) {
        this.lab = lab;
    }

    Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("a queue reads every topic of a namespace", this::queueReadsAll);
        claims.put("a stream reads every topic in order", this::streamReadsAll);
        claims.put("one acknowledgement covers every topic", this::cumulative);
        claims.put("an empty namespace is waited on", this::empty);
        claims.put("topics made later join", this::joins);
        claims.put("many topics made at once join", this::joinAtOnce);
        claims.put("a deleted topic leaves and stays deleted", this::leaves);
        claims.put("a topic made anew is read anew", this::anew);
        claims.put("filters choose the topics", this::filters);
        claims.put("properties move a topic in and out", this::properties);
        claims.put("regular topics stay out", this::regular);
        claims.put("splits and merges pass unnoticed", this::reshapes);
        claims.put("consumers of one subscription share", this::share);
        claims.put("a missing namespace is refused", this::missing);
        claims.put("a consumer outlives its connection", this::reconnects);
        claims.put("a consumer outlives the broker", this::restarts);
        claims.put("what changed while the broker was away is caught up with", this::changedMeanwhile);
        return claims;
    }

    // -- what is read

    private void queueReadsAll(String name) throws Exception {
        String space = namespace(name);
        Set<String> topics = made(space, "a", "b", "c");
        Set<String> sent = new TreeSet<>();
        for (String topic : topics) {
            sent.addAll(send(topic, 5));
        }
        Map<String, Set<String>> from = new HashMap<>();
        try (QueueConsumer<String> consumer = queue(space).subscribe()) {
            Set<String> come = new TreeSet<>();
            while (come.size() < sent.size()) {
                Message<String> message = consumer.receive(SOON);
                check(message != null, come.size() + " of " + sent.size());
                come.add(message.value());
                from.computeIfAbsent(message.topic(), t -> new HashSet<>()).add(message.value());
                consumer.acknowledge(message.id());
            }
            same(sent, come);
        }
        same(topics, from.keySet());
        from.forEach((topic, values) -> values.forEach(
                value -> check(value.startsWith(topic), value + " is said to come from " + topic)));
        // Each was acknowledged at the topic it came from.
        try (QueueConsumer<String> consumer = queue(space).subscribe()) {
            check(consumer.receive(A_MOMENT) == null, "nothing comes twice");
        }
    }

    private void streamReadsAll(String name) throws Exception {
        String space = namespace(name);
        History history = new History();
        try (Producer<String> a = lab.producer(topic(space, "a")); Producer<String> b = lab.producer(topic(space, "b"))) {
            new Sender(a, history, 10, true, "a").send(60);
            new Sender(b, history, 10, true, "b").send(60);
            try (Receiver receiver = Receiver.of(stream(space).subscribe(), history)) {
                history.awaitAll("what was there arrives");
                new Sender(a, history, 10, true, "c").send(60);
                new Sender(b, history, 10, true, "d").send(60);
                history.awaitAll("what comes later too");
            }
        }
        history.checkOrder();
        history.checkNothingIsLost();
    }

    private void cumulative(String name) throws Exception {
        String space = namespace(name);
        int sent = 0;
        for (String topic : made(space, "a", "b", "c")) {
            sent += send(topic, 10).size();
        }
        try (StreamConsumer<String> consumer = stream(space).subscribe()) {
            Message<String> last = null;
            for (int n = 0; n < sent; n++) {
                last = consumer.receive(SOON);
                check(last != null, n + " of " + sent);
            }
            consumer.acknowledgeCumulative(last.id());
        }
        try (StreamConsumer<String> consumer = stream(space).subscribe()) {
            Message<String> again = consumer.receive(A_MOMENT);
            check(again == null, "nothing comes again, on no topic: " + (again == null ? "" : again.value()));
        }
    }

    private void empty(String name) throws Exception {
        String space = namespace(name);
        try (QueueConsumer<String> queue = queue(space).subscribe();
                StreamConsumer<String> stream = stream(space).subscribe()) {
            check(queue.receive(A_MOMENT) == null, "nothing is there");
            Set<String> sent = send(made(space, "first").iterator().next(), 3);
            same(sent, taken(queue, 3));
            same(sent, taken(stream, 3));
        }
    }

    private void regular(String name) throws Exception {
        String space = namespace(name);
        lab.admin.topics().createNonPartitionedTopic("persistent://" + space + "/plain");
        lab.admin.topics().createPartitionedTopic("persistent://" + space + "/parts", 2);
        try (Producer<String> plain = lab.producer("persistent://" + space + "/plain");
                QueueConsumer<String> consumer = queue(space).subscribe()) {
            plain.newMessage().key("k").value("plain").send();
            check(consumer.receive(A_MOMENT) == null, "a regular topic is not read");
            same(send(made(space, "real").iterator().next(), 2), taken(consumer, 2));
        }
    }

    // -- coming and going

    private void joins(String name) throws Exception {
        String space = namespace(name);
        made(space, "old");
        try (QueueConsumer<String> queue = queue(space).subscribe();
                StreamConsumer<String> stream = stream(space).subscribe()) {
            for (String local : List.of("new-1", "new-2", "größe")) {
                String topic = topic(space, local);
                lab.topics().createScalableTopic(topic, 2);
                Set<String> sent = send(topic, 8);
                same(sent, taken(queue, 8));
                same(sent, taken(stream, 8));
            }
        }
    }

    private void joinAtOnce(String name) throws Exception {
        String space = namespace(name);
        try (QueueConsumer<String> queue = queue(space).subscribe()) {
            Set<String> sent = new TreeSet<>();
            for (int n = 0; n < 30; n++) {
                String topic = topic(space, "t" + n);
                lab.topics().createScalableTopic(topic, 1);
                sent.addAll(send(topic, 1));
            }
            same(sent, taken(queue, sent.size()));
        }
    }

    private void leaves(String name) throws Exception {
        String space = namespace(name);
        made(space, "kept", "gone");
        String kept = topic(space, "kept");
        String gone = topic(space, "gone");
        try (QueueConsumer<String> queue = queue(space).subscribe();
                StreamConsumer<String> stream = stream(space).subscribe()) {
            Set<String> first = send(gone, 4);
            same(first, taken(queue, 4));
            same(first, taken(stream, 4));
            lab.topics().deleteScalableTopic(gone, true);
            // Long enough for anybody who would bring it back.
            Words.pause(3_000);
            same(List.of(kept), lab.topics().listScalableTopics(space));
            Set<String> sent = send(kept, 4);
            same(sent, taken(queue, 4));
            same(sent, taken(stream, 4));
        }
        same(List.of(kept), lab.topics().listScalableTopics(space));
    }

    private void anew(String name) throws Exception {
        String space = namespace(name);
        String topic = made(space, "t").iterator().next();
        made(space, "other");
        try (QueueConsumer<String> queue = queue(space).subscribe()) {
            same(send(topic, 3), taken(queue, 3));
            for (int n = 0; n < 3; n++) {
                lab.topics().deleteScalableTopic(topic, true);
                lab.topics().createScalableTopic(topic, 2);
                Set<String> sent = send(topic, 3);
                same(sent, taken(queue, 3));
            }
        }
    }

    // -- filters

    private void filters(String name) throws Exception {
        String space = namespace(name);
        lab.topics().createScalableTopic(topic(space, "both"), 1, Map.of("team", "blue", "size", "2", "more", "x"));
        lab.topics().createScalableTopic(topic(space, "one"), 1, Map.of("team", "blue"));
        lab.topics().createScalableTopic(topic(space, "none"), 1);
        try (QueueConsumer<String> both = queue(space).namespace(space, Map.of("team", "blue", "size", "2"))
                        .subscriptionName("both").subscribe();
                StreamConsumer<String> one = stream(space).namespace(space, Map.of("team", "blue"))
                        .subscriptionName("one").subscribe()) {
            Set<String> inBoth = new TreeSet<>(send(topic(space, "both"), 2));
            Set<String> inOne = new TreeSet<>(inBoth);
            inOne.addAll(send(topic(space, "one"), 2));
            send(topic(space, "none"), 2);
            lab.topics().createScalableTopic(topic(space, "later"), 1, Map.of("size", "2", "team", "blue"));
            Set<String> later = send(topic(space, "later"), 2);
            inBoth.addAll(later);
            inOne.addAll(later);
            same(inBoth, taken(both, inBoth.size()));
            same(inOne, taken(one, inOne.size()));
            check(both.receive(A_MOMENT) == null && one.receive(A_MOMENT) == null, "and nothing else");
        }
    }

    private void properties(String name) throws Exception {
        String space = namespace(name);
        String topic = topic(space, "t");
        lab.topics().createScalableTopic(topic, 1, Map.of("team", "red"));
        try (QueueConsumer<String> consumer = queue(space).namespace(space, Map.of("team", "blue")).subscribe()) {
            Set<String> unread = new TreeSet<>(send(topic, 3));
            for (int n = 0; n < 3; n++) {
                check(consumer.receive(A_MOMENT) == null, "it is not in the set");
                team(topic, "blue");
                unread.addAll(send(topic, 3));
                same(unread, taken(consumer, unread.size()));
                team(topic, "red");
                until("its consumers have left", () -> consumers(topic) == 0);
                unread = new TreeSet<>(send(topic, 2));
            }
        }
    }

    // -- together with everything else

    private void reshapes(String name) throws Exception {
        String space = namespace(name);
        made(space, "a", "b");
        History history = new History();
        try (Producer<String> a = lab.producer(topic(space, "a"));
                Producer<String> b = lab.producer(topic(space, "b"));
                Receiver receiver = Receiver.of(stream(space).subscribe(), history)) {
            Sender one = new Sender(a, history, 20, true, "a").start(150);
            Sender two = new Sender(b, history, 20, true, "b").start(150);
            Random random = new Random(5);
            for (int n = 0; n < 6; n++) {
                Words.pause(200);
                lab.reshape(topic(space, n % 2 == 0 ? "a" : "b"), random, 4);
            }
            one.finish();
            two.finish();
            history.awaitAll("everything arrives");
        }
        history.checkOrder();
        history.checkNothingIsLost();
    }

    private void share(String name) throws Exception {
        String space = namespace(name);
        made(space, "a", "b", "c", "d");
        History history = new History();
        try (Receiver one = Receiver.of(queue(space).receiverQueueSize(10).subscribe(), history);
                Receiver two = Receiver.of(queue(space).receiverQueueSize(10).subscribe(), history)) {
            for (String local : List.of("a", "b", "c", "d")) {
                try (Producer<String> producer = lab.producer(topic(space, local))) {
                    new Sender(producer, history, 20, true, local).send(60);
                }
            }
            history.awaitAll("everything arrives");
            check(one.count.get() > 0 && two.count.get() > 0, "both took part");
        }
        history.checkNothingTwice();
    }

    private void missing(String name) throws Exception {
        refused(5, () -> queue("public/" + name).subscribe().close());
        refused(5, () -> stream("public/" + name).subscribe().close());
        refused(5, () -> queue("public/default").topic("topic://public/default/" + name).subscribe().close());
        String space = namespace(name);
        queue(space).subscribe().close();
    }

    // -- trouble

    private void reconnects(String name) throws Exception {
        String space = namespace(name);
        made(space, "a");
        // Watches go by the service URL; topics are found at the broker's own address.
        try (Wire wire = new Wire(lab.serviceUrl);
                PulsarClient own = PulsarClient.builder().serviceUrl(wire.serviceUrl()).build();
                QueueConsumer<String> consumer = queue(own, space).subscribe()) {
            same(send(topic(space, "a"), 3), taken(consumer, 3));
            for (int n = 0; n < 3; n++) {
                wire.cut();
                String unheard = topic(space, "unheard-" + n);
                if (n > 0) {
                    lab.topics().createScalableTopic(unheard, 1);
                }
                same(send(topic(space, "a"), 3), taken(consumer, 3));
                wire.mend();
                until("the watch is back", () -> wire.connections() > 0);
                // With the same set nothing is said, and then what is new; with another one the whole set.
                String later = topic(space, "later-" + n);
                lab.topics().createScalableTopic(later, 1);
                Set<String> sent = new TreeSet<>(send(later, 3));
                if (n > 0) {
                    sent.addAll(send(unheard, 2));
                }
                same(sent, taken(consumer, sent.size()));
            }
        }
    }

    private void restarts(String name) throws Exception {
        String space = namespace(name);
        made(space, "a", "b");
        History history = new History();
        try (Producer<String> a = lab.producer(topic(space, "a"));
                Producer<String> b = lab.producer(topic(space, "b"));
                Receiver receiver = Receiver.of(stream(space).subscribe(), history)) {
            Sender one = new Sender(a, history, 20, true, "a").start(100);
            Sender two = new Sender(b, history, 20, true, "b").start(100);
            Words.pause(500);
            lab.killAndRestart();
            Words.pause(1_000);
            one.finish();
            two.finish();
            String late = topic(space, "late");
            lab.topics().createScalableTopic(late, 1);
            try (Producer<String> c = lab.producer(late)) {
                new Sender(c, history, 5, true, "c").send(20);
            }
            history.awaitAll("everything arrives");
        }
        history.checkOrder();
        history.checkNothingIsLost();
    }

    private void changedMeanwhile(String name) throws Exception {
        String space = namespace(name);
        made(space, "a", "b");
        try (QueueConsumer<String> consumer = queue(space).subscribe()) {
            same(send(topic(space, "a"), 2), taken(consumer, 2));
            // The client keeps acknowledgements for 100 ms: what they are about would come again.
            Words.pause(1_000);
            lab.killAndRestart();
            // At once, before clients are back.
            lab.topics().createScalableTopic(topic(space, "c"), 1);
            lab.topics().deleteScalableTopic(topic(space, "b"), true);
            same(send(topic(space, "c"), 3), taken(consumer, 3));
            same(send(topic(space, "a"), 3), taken(consumer, 3));
        }
    }

    // -- words

    private String namespace(String name) throws Exception {
        String space = "public/" + name;
        lab.admin.namespaces().createNamespace(space);
        return space;
    }

    private static String topic(String space, String local) {
        return "topic://" + space + "/" + local;
    }

    /** Their full names. */
    private Set<String> made(String space, String... locals) throws Exception {
        Set<String> topics = new TreeSet<>();
        for (String local : locals) {
            topics.add(topic(space, local));
            lab.topics().createScalableTopic(topic(space, local), 2);
        }
        return topics;
    }

    /** Sends that many messages, each of which names its topic. */
    private Set<String> send(String topic, int count) throws Exception {
        Set<String> sent = new TreeSet<>();
        try (Producer<String> producer = lab.producer(topic)) {
            for (int n = 0; n < count; n++) {
                String value = topic + ":" + ++this.sent;
                producer.newMessage().key("k" + n).value(value).send();
                sent.add(value);
            }
        }
        return sent;
    }

    private static Set<String> taken(QueueConsumer<String> consumer, int count) throws Exception {
        Set<String> taken = new TreeSet<>();
        while (taken.size() < count) {
            Message<String> message = consumer.receive(SOON);
            check(message != null, "only " + taken + " of " + count + " came");
            taken.add(message.value());
            consumer.acknowledge(message.id());
        }
        return taken;
    }

    private static Set<String> taken(StreamConsumer<String> consumer, int count) throws Exception {
        Set<String> taken = new TreeSet<>();
        while (taken.size() < count) {
            Message<String> message = consumer.receive(SOON);
            check(message != null, "only " + taken + " of " + count + " came");
            taken.add(message.value());
            consumer.acknowledgeCumulative(message.id());
        }
        return taken;
    }

    private QueueConsumerBuilder<String> queue(String space) {
        return queue(lab.client, space);
    }

    private QueueConsumerBuilder<String> queue(PulsarClient with, String space) {
        return with.newQueueConsumer(Schema.string()).namespace(space).subscriptionName("q")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST);
    }

    private StreamConsumerBuilder<String> stream(String space) {
        return lab.client.newStreamConsumer(Schema.string()).namespace(space).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST);
    }

    /** Sets the property `team`, for which Pulsar's admin client has no call. */
    private void team(String topic, String value) throws Exception {
        URI uri = URI.create(lab.adminUrl + "/admin/v2/scalable/" + topic.substring("topic://".length()) + "/properties");
        HttpRequest request = HttpRequest.newBuilder(uri).header("Content-Type", "application/json")
                .PUT(HttpRequest.BodyPublishers.ofString("{\"team\": \"" + value + "\"}")).build();
        same(204, http.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
    }

    /** How many are attached to it. */
    private int consumers(String topic) throws Exception {
        return lab.topics().getStats(topic).getSubscriptions().values().stream()
                .mapToInt(subscription -> subscription.consumerCount()).sum();
    }
}
