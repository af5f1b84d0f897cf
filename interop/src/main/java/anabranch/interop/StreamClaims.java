package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.until;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Messages;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;

/** V5 stream consumers: each key in order, whatever happens to segments and consumers. */
final class StreamClaims {
    private static final Duration SOON = Duration.ofSeconds(Words.WAIT_S);

    private final Lab lab;

    StreamClaims(Lab lab) {
        this.lab = lab;
    }

    Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("a backlog of several generations comes in order", this::generations);
        claims.put("children wait until their parent is acknowledged", this::waits);
        claims.put("two consumers share a changing topic", this::shared);
        claims.put("a joining consumer gets its share", this::joins);
        claims.put("the segments of a consumer that left move", this::leaves);
        claims.put("the segments of a closed consumer move though its client stays", this::closes);
        claims.put("also if the topic splits meanwhile", this::closesAndSplits);
        claims.put("also if it had none when it was closed", this::closesIdle);
        claims.put("more consumers than segments", this::idle);
        claims.put("the same name takes over", this::takesOver);
        claims.put("a consumer goes on where it stopped", this::resumes);
        claims.put("latest means from now on", this::latest);
        claims.put("subscriptions do not disturb each other", this::independent);
        claims.put("many at once", this::batches);
        claims.put("a deleted topic ends its watchers", this::deleted);
        return claims;
    }

    private void generations(String name) throws Exception {
        String topic = lab.create(name, 1);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, history, 20).send(100);
            for (int n = 0; n < 3; n++) {
                lab.split(topic, 0);
                sender.send(100);
            }
            lab.merge(topic, 1);
            sender.send(100);
            lab.merge(topic, 0);
            sender.send(100);
        }
        try (Receiver receiver = Receiver.of(lab.stream(topic, "s").subscribe(), history)) {
            history.awaitAll("everything arrives");
        }
        history.checkOrder();
    }

    private void waits(String name) throws Exception {
        String topic = lab.create(name, 1);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic);
                StreamConsumer<String> consumer = lab.stream(topic, "s").subscribe()) {
            Sender sender = new Sender(producer, history, 5).send(10);
            lab.split(topic, 0);
            sender.send(10);
            Message<String> last = null;
            for (int n = 0; n < 10; n++) {
                last = consumer.receive(SOON);
                check(last != null, "the parent's message " + n + " comes");
                history.received(last.value());
            }
            check(consumer.receive(Duration.ofSeconds(1)) == null, "the children's do not, before an acknowledgement");
            consumer.acknowledgeCumulative(last.id());
            for (int n = 0; n < 10; n++) {
                last = consumer.receive(SOON);
                check(last != null, "then they come: " + n);
                history.received(last.value());
                consumer.acknowledgeCumulative(last.id());
            }
        }
        history.checkOrder();
        history.checkNothingIsLost();
        history.checkNothingTwice();
    }

    private void shared(String name) throws Exception {
        String topic = lab.create(name, 4);
        History history = new History();
        Random random = new Random(11);
        try (PulsarClient other = lab.newClient(); Producer<String> producer = lab.producer(topic);
                Receiver one = Receiver.of(lab.stream(topic, "s").consumerName("one").subscribe(), history);
                Receiver two = Receiver.of(lab.stream(other, topic, "s").consumerName("two").subscribe(), history)) {
            Sender sender = new Sender(producer, history, 100).start(0);
            for (int n = 0; n < 10; n++) {
                Words.pause(150);
                lab.reshape(topic, random, 8);
            }
            sender.finish();
            history.awaitAll("everything arrives");
            check(one.count.get() > 0 && two.count.get() > 0, "both took part");
        }
        history.checkOrder();
    }

    private void joins(String name) throws Exception {
        String topic = lab.create(name, 4);
        History history = new History();
        try (PulsarClient other = lab.newClient(); Producer<String> producer = lab.producer(topic);
                Receiver one = Receiver.of(lab.stream(topic, "s").consumerName("one").subscribe(), history)) {
            Sender sender = new Sender(producer, history, 100).start(500);
            until("the first has every key", () -> one.keys.size() == 100);
            try (Receiver two = Receiver.of(lab.stream(other, topic, "s").consumerName("two").subscribe(), history)) {
                until("the second gets keys", () -> two.keys.size() > 20);
                until("each key comes to one of them", () -> {
                    one.forgetKeys();
                    two.forgetKeys();
                    Words.pause(400);
                    Set<String> both = new HashSet<>(one.keys);
                    both.retainAll(two.keys);
                    return both.isEmpty() && one.keys.size() > 20 && two.keys.size() > 20;
                });
                sender.finish();
                history.awaitAll("everything arrives");
            }
        }
        history.checkOrder();
    }

    private void leaves(String name) throws Exception {
        String topic = lab.create(name, 4);
        History history = new History();
        try (PulsarClient other = lab.newClient(); Producer<String> producer = lab.producer(topic);
                Receiver one = Receiver.of(lab.stream(topic, "s").consumerName("one").subscribe(), history)) {
            Receiver two = Receiver.of(lab.stream(other, topic, "s").consumerName("two").subscribe(), history);
            Sender sender = new Sender(producer, history, 100).start(500);
            until("the second has its share", () -> two.keys.size() > 20);
            two.close();
            // The V5 client does not say that it leaves; its connection must go.
            other.close();
            one.forgetKeys();
            until("the first has every key again", () -> one.keys.size() == 100);
            sender.finish();
            history.awaitAll("everything arrives");
        }
        history.checkOrder();
    }

    private void closes(String name) throws Exception {
        closes(lab.create(name, 4), () -> { });
    }

    private void closesAndSplits(String name) throws Exception {
        String topic = lab.create(name, 4);
        closes(topic, () -> {
            for (int n = 0; n < 4; n++) {
                Words.pause(1000);
                lab.split(topic, n);
            }
        });
    }

    private void closes(String topic, Words.Action meanwhile) throws Exception {
        History history = new History();
        try (Producer<String> producer = lab.producer(topic);
                Receiver one = Receiver.of(lab.stream(topic, "s").consumerName("one").subscribe(), history)) {
            Receiver two = Receiver.of(lab.stream(topic, "s").consumerName("two").subscribe(), history);
            Sender sender = new Sender(producer, history, 100).start(500);
            until("the second has its share", () -> two.keys.size() > 20);
            two.close();
            meanwhile.run();
            one.forgetKeys();
            until("the first has every key again", () -> one.keys.size() == 100);
            sender.finish();
            history.awaitAll("everything arrives");
        }
        history.checkOrder();
    }

    private void closesIdle(String name) throws Exception {
        String topic = lab.create(name, 1);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic);
                Receiver one = Receiver.of(lab.stream(topic, "s").consumerName("one").subscribe(), history)) {
            lab.stream(topic, "s").consumerName("two").subscribe().close();
            Sender sender = new Sender(producer, history, 100).send(100);
            history.awaitAll("what was sent before arrives");
            lab.split(topic, 0);
            sender.send(100);
            history.awaitAll("and what was sent to the children, one of which was the second's");
            check(one.count.get() > 100, "all of it came to the first");
        }
        history.checkOrder();
    }

    private void idle(String name) throws Exception {
        String topic = lab.create(name, 1);
        History history = new History();
        List<Receiver> receivers = new ArrayList<>();
        try (Producer<String> producer = lab.producer(topic)) {
            for (int n = 0; n < 3; n++) {
                receivers.add(Receiver.of(lab.stream(topic, "s").consumerName("c" + n).subscribe(), history));
            }
            Sender sender = new Sender(producer, history, 50).send(100);
            lab.split(topic, 0);
            lab.split(topic, 0);
            sender.send(200);
            history.awaitAll("everything arrives");
            until("the idle ones get segments too", () -> {
                sender.send(50);
                return receivers.stream().allMatch(r -> r.count.get() > 0);
            });
            history.awaitAll("everything arrives");
        } finally {
            for (Receiver receiver : receivers) {
                receiver.close();
            }
        }
        history.checkOrder();
    }

    private void takesOver(String name) throws Exception {
        String topic = lab.create(name, 2);
        History history = new History();
        try (PulsarClient other = lab.newClient(); Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, history, 20).send(50);
            StreamConsumer<String> first = lab.stream(other, topic, "s").consumerName("same").subscribe();
            Receiver receiver = Receiver.of(first, history);
            history.awaitAll("the first reads");
            receiver.stop();
            other.close();
            try (Receiver second = Receiver.of(lab.stream(topic, "s").consumerName("same").subscribe(), history)) {
                sender.send(50);
                history.awaitAll("the second has every segment at once", 3);
                same(1, lab.topics().getStats(topic).getSubscriptions().get("s").consumerCount());
            }
        }
        history.checkOrder();
    }

    private void resumes(String name) throws Exception {
        // One segment: with several, this client's acknowledgement can cover a message of another segment that it has
        // received but not yet handed out.
        String topic = lab.create(name, 1);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, history, 20).send(60);
            for (int round = 0; round < 3; round++) {
                try (PulsarClient each = lab.newClient();
                        StreamConsumer<String> consumer = lab.stream(each, topic, "s").consumerName("c").subscribe()) {
                    for (int n = 0; n < 20; n++) {
                        Message<String> message = consumer.receive(SOON);
                        check(message != null, "round " + round + " message " + n);
                        history.received(message.value());
                        consumer.acknowledgeCumulative(message.id());
                    }
                }
            }
        }
        history.checkNothingIsLost();
        history.checkNothingTwice();
        history.checkOrder();
    }

    private void latest(String name) throws Exception {
        String topic = lab.create(name, 2);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, new History(), 10, true, "old").send(20);
            try (StreamConsumer<String> consumer = lab.client.newStreamConsumer(
                    org.apache.pulsar.client.api.v5.schema.Schema.string()).topic(topic).subscriptionName("s")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.LATEST).subscribe()) {
                lab.split(topic, 0);
                new Sender(producer, history, 10, true, "new").send(20);
                for (int n = 0; n < 20; n++) {
                    Message<String> message = consumer.receive(SOON);
                    check(message != null, "message " + n);
                    check(message.value().startsWith("new"), "only later ones: " + message.value());
                    history.received(message.value());
                    consumer.acknowledgeCumulative(message.id());
                }
            }
        }
        history.checkOrder();
    }

    private void independent(String name) throws Exception {
        String topic = lab.create(name, 2);
        History first = new History();
        History second = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, first, 20).send(50);
            lab.split(topic, 0);
            new Sender(producer, second, 20, true, "x").send(50);
            for (String subscription : List.of("a", "b")) {
                List<String> values = new ArrayList<>();
                try (StreamConsumer<String> consumer = lab.stream(topic, subscription).subscribe()) {
                    for (int n = 0; n < 100; n++) {
                        Message<String> message = consumer.receive(SOON);
                        check(message != null, subscription + " message " + n);
                        values.add(message.value());
                        consumer.acknowledgeCumulative(message.id());
                    }
                }
                same(100, new HashSet<>(values).size());
            }
        }
    }

    private void batches(String name) throws Exception {
        String topic = lab.create(name, 2);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic);
                StreamConsumer<String> consumer = lab.stream(topic, "s").subscribe()) {
            new Sender(producer, history, 20, false, "k").send(1000);
            int count = 0;
            while (count < 1000) {
                Messages<String> some = consumer.receiveMulti(100, SOON);
                check(some.count() > 0, count + " of 1000 came");
                some.forEach(message -> history.received(message.value()));
                count += some.count();
                consumer.acknowledgeCumulative(some.lastId());
            }
        }
        history.checkNothingIsLost();
        history.checkOrder();
    }

    private void deleted(String name) throws Exception {
        String topic = lab.create(name, 2);
        try (PulsarClient other = lab.newClient()) {
            StreamConsumer<String> consumer = lab.stream(other, topic, "s").subscribe();
            lab.topics().deleteScalableTopic(topic, true);
            Words.status(404, () -> lab.metadata(topic));
            try {
                check(consumer.receive(Duration.ofSeconds(2)) == null, "nothing comes from a topic that is gone");
            } catch (org.apache.pulsar.client.api.v5.PulsarClientException told) {
                // Also fine: the client was told.
            }
        }
        Words.status(404, () -> lab.metadata(topic));
        same(0, lab.metadata(lab.create(name, 1)).getSegments().get(0L).getParentIds().size());
    }
}
