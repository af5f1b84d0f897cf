package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;

import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.DeadLetterPolicy;
import org.apache.pulsar.client.api.v5.config.ProcessingTimeoutPolicy;

/** V5 queue consumers: every message to one of them, from sealed and active segments alike. */
final class QueueClaims {
    private static final Duration SOON = Duration.ofSeconds(Words.WAIT_S);

    private final Lab lab;

    QueueClaims(Lab lab) {
        this.lab = lab;
    }

    Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("sealed and active segments are read", this::sealed);
        claims.put("three consumers share a changing topic", this::shared);
        claims.put("acknowledgements are one by one and kept", this::acknowledgements);
        claims.put("what is refused comes again", this::redelivery);
        claims.put("what takes too long comes again", this::timeouts);
        claims.put("what is refused too often becomes a dead letter", this::deadLetters);
        claims.put("what a closed consumer left goes to the others", this::handsOver);
        return claims;
    }

    private void sealed(String name) throws Exception {
        String topic = lab.create(name, 1);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, history, 20).send(50);
            lab.split(topic, 0);
            sender.send(50);
            lab.split(topic, 1);
            sender.send(50);
            try (Receiver receiver = Receiver.of(lab.queue(topic, "q").subscribe(), history)) {
                history.awaitAll("everything arrives");
                lab.merge(topic, 0);
                sender.send(50);
                history.awaitAll("what comes later too");
            }
        }
        history.checkNothingTwice();
    }

    private void shared(String name) throws Exception {
        String topic = lab.create(name, 2);
        History history = new History();
        Random random = new Random(3);
        try (Producer<String> producer = lab.producer(topic);
                Receiver one = Receiver.of(lab.queue(topic, "q").receiverQueueSize(20).subscribe(), history);
                Receiver two = Receiver.of(lab.queue(topic, "q").receiverQueueSize(20).subscribe(), history);
                Receiver three = Receiver.of(lab.queue(topic, "q").receiverQueueSize(20).subscribe(), history)) {
            Sender sender = new Sender(producer, history, 50, false, "k").start(500);
            for (int n = 0; n < 8; n++) {
                Words.pause(150);
                lab.reshape(topic, random, 6);
            }
            sender.finish();
            history.awaitAll("everything arrives");
            check(one.count.get() > 0 && two.count.get() > 0 && three.count.get() > 0, "all took part");
        }
    }

    private void acknowledgements(String name) throws Exception {
        String topic = lab.create(name, 2);
        Set<String> kept = new HashSet<>();
        try (Producer<String> producer = lab.producer(topic)) {
            try (QueueConsumer<String> consumer = lab.queue(topic, "q").subscribe()) {
                new Sender(producer, new History(), 10).send(40);
                for (int n = 0; n < 40; n++) {
                    Message<String> message = consumer.receive(SOON);
                    check(message != null, "message " + n);
                    if (n % 3 == 0) {
                        kept.add(message.value());
                    } else {
                        consumer.acknowledge(message.id());
                    }
                }
            }
            lab.split(topic, 0);
            Set<String> again = new HashSet<>();
            try (QueueConsumer<String> consumer = lab.queue(topic, "q").subscribe()) {
                while (again.size() < kept.size()) {
                    Message<String> message = consumer.receive(SOON);
                    check(message != null, again.size() + " of " + kept.size() + " came again");
                    again.add(message.value());
                    consumer.acknowledge(message.id());
                }
                check(consumer.receive(Duration.ofMillis(500)) == null, "and nothing else");
            }
            same(kept, again);
        }
    }

    private void redelivery(String name) throws Exception {
        String topic = lab.create(name, 2);
        Map<String, Integer> times = new HashMap<>();
        try (Producer<String> producer = lab.producer(topic);
                QueueConsumer<String> consumer = lab.queue(topic, "q").negativeAckRedeliveryBackoff(
                        BackoffPolicy.exponential(Duration.ofMillis(100), Duration.ofMillis(200))).subscribe()) {
            new Sender(producer, new History(), 10).send(20);
            int done = 0;
            while (done < 20) {
                Message<String> message = consumer.receive(SOON);
                check(message != null, done + " of 20 came twice");
                if (times.merge(message.value(), 1, Integer::sum) == 1) {
                    consumer.negativeAcknowledge(message.id());
                } else {
                    check(message.redeliveryCount() > 0, "it says that it comes again");
                    consumer.acknowledge(message.id());
                    done++;
                }
            }
        }
        same(20, times.size());
    }

    private void timeouts(String name) throws Exception {
        String topic = lab.create(name, 1);
        try (Producer<String> producer = lab.producer(topic);
                QueueConsumer<String> consumer = lab.queue(topic, "q")
                        .processingTimeout(ProcessingTimeoutPolicy.of(Duration.ofSeconds(1))).subscribe()) {
            producer.newMessage().key("a").value("a:1").send();
            check(consumer.receive(SOON) != null, "it comes");
            Message<String> again = consumer.receive(SOON);
            check(again != null && again.value().equals("a:1"), "and again, never acknowledged");
            consumer.acknowledge(again.id());
        }
    }

    private void deadLetters(String name) throws Exception {
        String topic = lab.create(name, 1);
        String dead = lab.create(name + "-dead", 1);
        try (Producer<String> producer = lab.producer(topic);
                QueueConsumer<String> letters = lab.queue(dead, "letters").subscribe();
                QueueConsumer<String> consumer = lab.queue(topic, "q")
                        .negativeAckRedeliveryBackoff(
                                BackoffPolicy.exponential(Duration.ofMillis(50), Duration.ofMillis(100)))
                        .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(dead)
                                .build())
                        .subscribe()) {
            producer.newMessage().key("bad").value("bad:1").send();
            producer.newMessage().key("good").value("good:1").send();
            int refusals = 0;
            boolean good = false;
            Message<String> letter = null;
            long deadline = System.nanoTime() + SOON.toNanos();
            while (letter == null && System.nanoTime() < deadline) {
                Message<String> message = consumer.receive(Duration.ofMillis(100));
                if (message != null && message.value().startsWith("bad")) {
                    refusals++;
                    consumer.negativeAcknowledge(message.id());
                } else if (message != null) {
                    good = true;
                    consumer.acknowledge(message.id());
                }
                letter = letters.receive(Duration.ofMillis(50));
            }
            check(letter != null, "a dead letter comes, after " + refusals + " refusals");
            same("bad:1", letter.value());
            check(good, "the other message is not held up");
            check(refusals == 3 || refusals == 2, "after as many tries as asked for: " + refusals);
            check(consumer.receive(Duration.ofMillis(500)) == null, "and does not come again");
        }
    }

    private void handsOver(String name) throws Exception {
        String topic = lab.create(name, 2);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            QueueConsumer<String> first = lab.queue(topic, "q").subscribe();
            new Sender(producer, history, 10).send(30);
            for (int n = 0; n < 10; n++) {
                check(first.receive(SOON) != null, "message " + n);
            }
            try (Receiver second = Receiver.of(lab.queue(topic, "q").subscribe(), history)) {
                first.close();
                history.awaitAll("everything arrives");
            }
        }
    }
}
