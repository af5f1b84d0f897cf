package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.clientError;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.until;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.common.policies.data.ScalableTopicMetadata.SegmentInfo;

/** V5 clients on regular topics, and regular topics becoming scalable ones. */
final class RegularTopicClaims {
    private final Lab lab;

    RegularTopicClaims(Lab lab) {
        this.lab = lab;
    }

    Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        for (int partitions : new int[] {0, 3}) {
            String kind = partitions == 0 ? "a plain topic" : "a partitioned topic";
            claims.put(kind + " has V5 queue consumers", name -> queue(regular(name, partitions)));
            claims.put(kind + " has V5 stream consumers", name -> stream(regular(name, partitions)));
            claims.put(kind + " has V5 checkpoint consumers", name -> checkpoint(regular(name, partitions)));
            claims.put(kind + " cannot be split before it migrates", name -> split(regular(name, partitions)));
            claims.put(kind + " migrates under load", name -> migrate(name, regular(name, partitions), partitions));
            claims.put(kind + " keeps its subscriptions when it migrates",
                    name -> subscriptions(name, regular(name, partitions)));
        }
        claims.put("classic clients stop a migration unless forced", this::classicClients);
        claims.put("classic clients are told to use V5 on a scalable topic", this::classicOnScalable);
        return claims;
    }

    private String regular(String name, int partitions) throws Exception {
        String topic = "persistent://public/default/" + name;
        if (partitions == 0) {
            lab.admin.topics().createNonPartitionedTopic(topic);
        } else {
            lab.admin.topics().createPartitionedTopic(topic, partitions);
        }
        return topic;
    }

    private void queue(String topic) throws Exception {
        History history = new History();
        try (Producer<String> producer = lab.producer(topic);
                Receiver one = Receiver.of(lab.queue(topic, "q").subscribe(), history);
                Receiver two = Receiver.of(lab.queue(topic, "q").subscribe(), history)) {
            new Sender(producer, history, 20).send(100);
            new Sender(producer, history, 20, false, "b").send(200);
            history.awaitAll("everything arrives");
        }
    }

    private void stream(String topic) throws Exception {
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, history, 20).send(100);
            try (Receiver one = Receiver.of(lab.stream(topic, "s").consumerName("one").subscribe(), history);
                    Receiver two = Receiver.of(lab.stream(topic, "s").consumerName("two").subscribe(), history)) {
                sender.send(100);
                history.awaitAll("everything arrives");
                // A receiver acknowledges some time after it received: one that leaves before has not acknowledged what
                // came last, and may see that again.
                one.awaitAcknowledged();
                two.awaitAcknowledged();
            }
            try (StreamConsumer<String> again = lab.stream(topic, "s").consumerName("one").subscribe()) {
                check(again.receive(java.time.Duration.ofMillis(500)) == null, "what was acknowledged stays so");
            }
        }
        history.checkOrder();
    }

    private void checkpoint(String topic) throws Exception {
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, history, 20).send(100);
            try (Receiver receiver = Receiver.of(lab.checkpoint(topic).startPosition(Checkpoint.earliest()).create(),
                    history)) {
                history.awaitAll("everything arrives");
            }
        }
        history.checkOrder();
    }

    private void split(String topic) throws Exception {
        clientError(() -> lab.topics().splitSegment(topic.replace("persistent://", "topic://"), 0));
    }

    private void migrate(String name, String topic, int partitions) throws Exception {
        String scalable = "topic://public/default/" + name;
        History history = new History();
        try (Producer<String> producer = lab.producer(topic);
                Receiver queue = Receiver.of(lab.queue(topic, "q").subscribe(), new History());
                Receiver stream = Receiver.of(lab.stream(topic, "s").subscribe(), history)) {
            Sender sender = new Sender(producer, history, 40).start(0);
            Words.pause(500);
            lab.topics().migrateToScalable(topic, false);
            Words.pause(500);
            check(lab.topics().listScalableTopics("public/default").contains(scalable), "it is listed");
            int old = Math.max(1, partitions);
            same((long) old, lab.metadata(scalable).getSegments().values().stream().filter(SegmentInfo::isLegacy)
                    .count());
            lab.split(scalable, 0);
            Words.pause(300);
            sender.finish();
            history.awaitAll("everything arrives");
        }
        history.checkOrder();
        History all = new History();
        try (Producer<String> producer = lab.producer(scalable);
                Receiver late = Receiver.of(lab.stream(scalable, "late").subscribe(), all)) {
            new Sender(producer, all, 10, true, "late").send(20);
            int expected = history.sent() + 20;
            until("a late subscription reads the old topic too", () -> late.count.get() >= expected);
        }
        all.checkOrder();
    }

    private void subscriptions(String name, String topic) throws Exception {
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, new History(), 10, true, "before").send(20);
        }
        lab.admin.topics().createSubscription(topic, "old", org.apache.pulsar.client.api.MessageId.latest);
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, history, 10).send(30);
        }
        lab.topics().migrateToScalable(topic, false);
        try (Producer<String> producer = lab.producer("topic://public/default/" + name);
                Receiver receiver = Receiver.of(lab.stream("topic://public/default/" + name, "old").subscribe(),
                        history)) {
            new Sender(producer, history, 10, true, "after").send(30);
            history.awaitAll("everything since it was made arrives");
            same(60, receiver.count.get());
        }
        history.checkOrder();
    }

    private void classicClients(String name) throws Exception {
        String topic = regular(name, 0);
        try (org.apache.pulsar.client.api.PulsarClient classic = org.apache.pulsar.client.api.PulsarClient.builder()
                .serviceUrl(lab.serviceUrl).operationTimeout(5, TimeUnit.SECONDS).build()) {
            classic.newProducer().topic(topic).create();
            clientError(() -> lab.topics().migrateToScalable(topic, false));
            lab.topics().migrateToScalable(topic, true);
            check(!lab.activeIds("topic://public/default/" + name).isEmpty(), "it is scalable now");
        }
    }

    private void classicOnScalable(String name) throws Exception {
        String topic = lab.create(name, 1);
        try (org.apache.pulsar.client.api.PulsarClient classic = org.apache.pulsar.client.api.PulsarClient.builder()
                .serviceUrl(lab.serviceUrl).operationTimeout(5, TimeUnit.SECONDS).build()) {
            Words.refused(20, () -> classic.newProducer().topic(topic).create());
            Words.refused(20, () -> classic.newConsumer().topic(topic).subscriptionName("s").subscribe());
        }
    }
}
