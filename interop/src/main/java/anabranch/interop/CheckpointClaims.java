package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;

import java.time.Duration;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** V5 checkpoint consumers, which keep their positions themselves: alone and in groups. */
final class CheckpointClaims {
    private static final Duration SOON = Duration.ofSeconds(Words.WAIT_S);

    private final Lab lab;

    CheckpointClaims(Lab lab) {
        this.lab = lab;
    }

    Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("one alone reads everything through splits and merges", this::alone);
        claims.put("a checkpoint is taken up again", this::restored);
        claims.put("a checkpoint from before a split is taken up again", this::acrossSplit);
        claims.put("latest means from now on", this::latest);
        claims.put("a group reads every generation in order", this::groupGenerations);
        claims.put("a group shares a changing topic", this::groupShared);
        claims.put("a member of a group goes on from its checkpoint", this::groupRestored);
        return claims;
    }

    private void alone(String name) throws Exception {
        String topic = lab.create(name, 2);
        History history = new History();
        Random random = new Random(5);
        try (Producer<String> producer = lab.producer(topic)) {
            Sender first = new Sender(producer, history, 50).send(100);
            lab.split(topic, 0);
            first.send(100);
            try (Receiver receiver = Receiver.of(lab.checkpoint(topic).startPosition(Checkpoint.earliest()).create(),
                    history)) {
                Sender sender = new Sender(producer, history, 50, true, "more").start(0);
                for (int n = 0; n < 6; n++) {
                    Words.pause(150);
                    lab.reshape(topic, random, 6);
                }
                sender.finish();
                history.awaitAll("everything arrives");
            }
        }
    }

    private void restored(String name) throws Exception {
        String topic = lab.create(name, 2);
        History history = new History();
        byte[] saved = Checkpoint.earliest().toByteArray();
        try (Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, history, 20);
            for (int round = 0; round < 3; round++) {
                sender.send(40);
                try (CheckpointConsumer<String> consumer = lab.checkpoint(topic)
                        .startPosition(Checkpoint.fromByteArray(saved)).create()) {
                    for (int n = 0; n < 40; n++) {
                        Message<String> message = consumer.receive(SOON);
                        check(message != null, "round " + round + " message " + n);
                        history.received(message.value());
                    }
                    saved = consumer.checkpoint().toByteArray();
                }
            }
        }
        history.checkNothingIsLost();
        history.checkNothingTwice();
        history.checkOrder();
    }

    private void acrossSplit(String name) throws Exception {
        String topic = lab.create(name, 1);
        History history = new History();
        byte[] saved;
        try (Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, history, 20).send(60);
            try (CheckpointConsumer<String> consumer = lab.checkpoint(topic).startPosition(Checkpoint.earliest())
                    .create()) {
                for (int n = 0; n < 25; n++) {
                    Message<String> message = consumer.receive(SOON);
                    check(message != null, "message " + n);
                    history.received(message.value());
                }
                saved = consumer.checkpoint().toByteArray();
            }
            lab.split(topic, 0);
            sender.send(60);
            lab.merge(topic, 0);
            sender.send(60);
            try (Receiver receiver = Receiver.of(lab.checkpoint(topic)
                    .startPosition(Checkpoint.fromByteArray(saved)).create(), history)) {
                history.awaitAll("the rest arrives");
            }
        }
        history.checkNothingTwice();
    }

    private void latest(String name) throws Exception {
        String topic = lab.create(name, 2);
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, new History(), 10, true, "old").send(20);
            try (CheckpointConsumer<String> consumer = lab.checkpoint(topic).startPosition(Checkpoint.latest())
                    .create()) {
                History history = new History();
                new Sender(producer, history, 10, true, "new").send(20);
                for (int n = 0; n < 20; n++) {
                    Message<String> message = consumer.receive(SOON);
                    check(message != null, "message " + n);
                    check(message.value().startsWith("new"), "only later ones: " + message.value());
                    history.received(message.value());
                }
                history.checkNothingIsLost();
            }
        }
    }

    private void groupGenerations(String name) throws Exception {
        String topic = lab.create(name, 1);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, history, 20).send(60);
            lab.split(topic, 0);
            sender.send(60);
            lab.split(topic, 1);
            sender.send(60);
            lab.merge(topic, 0);
            sender.send(60);
        }
        try (PulsarClient other = lab.newClient();
                Receiver one = Receiver.of(member(lab.client, topic, "one"), history);
                Receiver two = Receiver.of(member(other, topic, "two"), history)) {
            history.awaitAll("everything arrives");
        }
        history.checkOrder();
    }

    private CheckpointConsumer<String> member(PulsarClient with, String topic, String name) throws Exception {
        return with.newCheckpointConsumer(Schema.string()).topic(topic).consumerGroup("group").consumerName(name)
                .startPosition(Checkpoint.earliest()).create();
    }

    private void groupShared(String name) throws Exception {
        String topic = lab.create(name, 4);
        History history = new History();
        Random random = new Random(9);
        try (PulsarClient other = lab.newClient(); Producer<String> producer = lab.producer(topic);
                Receiver one = Receiver.of(member(lab.client, topic, "one"), history);
                Receiver two = Receiver.of(member(other, topic, "two"), history)) {
            Sender sender = new Sender(producer, history, 50).start(0);
            for (int n = 0; n < 6; n++) {
                Words.pause(200);
                lab.reshape(topic, random, 8);
            }
            sender.finish();
            history.awaitAll("everything arrives");
            check(one.count.get() > 0 && two.count.get() > 0, "both took part");
        }
        history.checkOrder();
    }

    private void groupRestored(String name) throws Exception {
        String topic = lab.create(name, 2);
        byte[] saved = Checkpoint.earliest().toByteArray();
        Set<String> got = new HashSet<>();
        try (Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, new History(), 20);
            for (int round = 0; round < 2; round++) {
                sender.send(40);
                try (PulsarClient each = lab.newClient();
                        CheckpointConsumer<String> consumer = each.newCheckpointConsumer(Schema.string()).topic(topic)
                                .consumerGroup("g").consumerName("only")
                                .startPosition(Checkpoint.fromByteArray(saved)).create()) {
                    for (int n = 0; n < 40; n++) {
                        Message<String> message = consumer.receive(SOON);
                        check(message != null, "round " + round + " message " + n);
                        check(got.add(message.value()), "new: " + message.value());
                    }
                    saved = consumer.checkpoint().toByteArray();
                }
            }
        }
        same(80, got.size());
    }
}
