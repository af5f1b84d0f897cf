package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.status;
import static anabranch.interop.Words.until;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.ScalableTopics;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.common.policies.data.AutoScalePolicyOverride;

/**
 * Automatic splits and merges: the policy through the admin client, and what V5 consumers see of them. The broker under
 * test has automation switched off, so that each claim that needs it switches it on for its own topic.
 */
final class AutoScaleClaims {
    /** Longer than a broker that is asked many times over needs to do something by mistake. */
    private static final long QUIET_MS = 2500;

    private final Lab lab;
    private final ScalableTopics topics;
    private final Namespaces namespaces;

    AutoScaleClaims(Lab lab) {
        this.lab = lab;
        this.topics = lab.topics();
        this.namespaces = lab.admin.namespaces();
    }

    Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("a policy is set on a topic and removed", this::topicPolicy);
        claims.put("a policy is set on a namespace and removed", this::namespacePolicy);
        claims.put("a policy that contradicts itself is refused", this::contradiction);
        claims.put("a topic is checked together with its namespace", this::levels);
        claims.put("a policy survives splits and merges", this::survives);
        claims.put("joining stream consumers get segments of their own", this::joins);
        claims.put("a topic that opted out stays as it is", this::optedOut);
        claims.put("queue consumers do not make segments", this::queues);
        claims.put("idle segments are merged once nobody needs them", this::merges);
        return claims;
    }

    private void topicPolicy(String name) throws Exception {
        String topic = lab.create(name, 1);
        check(topics.getAutoScalePolicy(topic) == null, "nothing is set at first");
        AutoScalePolicyOverride some = AutoScalePolicyOverride.builder().enabled(true).maxSegments(8)
                .splitMsgRateInThreshold(5_000.5).build();
        topics.setAutoScalePolicy(topic, some);
        same(some, topics.getAutoScalePolicy(topic));
        same(some, lab.metadata(topic).getAutoScalePolicy());
        AutoScalePolicyOverride all = everything();
        topics.setAutoScalePolicy(topic, all);
        same(all, topics.getAutoScalePolicy(topic));
        topics.removeAutoScalePolicy(topic);
        check(topics.getAutoScalePolicy(topic) == null, "nothing is set any more");
        topics.removeAutoScalePolicy(topic);
        status(404, () -> topics.setAutoScalePolicy(topic + "-none", some));
        status(404, () -> topics.getAutoScalePolicy(topic + "-none"));
        status(404, () -> topics.removeAutoScalePolicy(topic + "-none"));
    }

    private void namespacePolicy(String name) throws Exception {
        String namespace = newNamespace(name);
        check(namespaces.getScalableTopicAutoScalePolicy(namespace) == null, "nothing is set at first");
        for (AutoScalePolicyOverride each : List.of(
                AutoScalePolicyOverride.builder().enabled(false).build(), everything())) {
            namespaces.setScalableTopicAutoScalePolicy(namespace, each);
            same(each, namespaces.getScalableTopicAutoScalePolicy(namespace));
            same(each, namespaces.getPolicies(namespace).scalableTopicAutoScalePolicy);
        }
        namespaces.removeScalableTopicAutoScalePolicy(namespace);
        check(namespaces.getScalableTopicAutoScalePolicy(namespace) == null, "nothing is set any more");
        status(404, () -> namespaces.getScalableTopicAutoScalePolicy("public/none-" + name));
        status(404, () -> namespaces.setScalableTopicAutoScalePolicy("public/none-" + name, everything()));
    }

    private void contradiction(String name) throws Exception {
        String topic = lab.create(name, 1);
        String namespace = newNamespace(name);
        for (AutoScalePolicyOverride bad : List.of(
                AutoScalePolicyOverride.builder().minSegments(1_000_000).build(),
                AutoScalePolicyOverride.builder().minSegments(0).build(),
                AutoScalePolicyOverride.builder().splitCooldownSeconds(-1L).build(),
                AutoScalePolicyOverride.builder().splitMsgRateInThreshold(0.0).build(),
                AutoScalePolicyOverride.builder().splitBytesRateOutThreshold(25_000_000L).build())) {
            status(412, () -> topics.setAutoScalePolicy(topic, bad));
            status(412, () -> namespaces.setScalableTopicAutoScalePolicy(namespace, bad));
        }
        check(topics.getAutoScalePolicy(topic) == null, "what is refused is not stored");
        check(namespaces.getScalableTopicAutoScalePolicy(namespace) == null, "nor on the namespace");
    }

    private void levels(String name) throws Exception {
        String namespace = newNamespace(name);
        String topic = "topic://" + namespace + "/t";
        topics.createScalableTopic(topic, 1);
        namespaces.setScalableTopicAutoScalePolicy(namespace,
                AutoScalePolicyOverride.builder().mergeMsgRateInThreshold(5_000.0).build());
        AutoScalePolicyOverride low = AutoScalePolicyOverride.builder().splitMsgRateInThreshold(2_000.0).build();
        status(412, () -> topics.setAutoScalePolicy(topic, low));
        namespaces.removeScalableTopicAutoScalePolicy(namespace);
        topics.setAutoScalePolicy(topic, low);
        same(low, topics.getAutoScalePolicy(topic));
    }

    private void survives(String name) throws Exception {
        String topic = lab.create(name, 2);
        AutoScalePolicyOverride some = AutoScalePolicyOverride.builder().maxSegments(8).build();
        topics.setAutoScalePolicy(topic, some);
        lab.split(topic, 0);
        lab.merge(topic, 1);
        same(some, topics.getAutoScalePolicy(topic));
    }

    private void joins(String name) throws Exception {
        String topic = lab.create(name, 1);
        topics.setAutoScalePolicy(topic, eager().build());
        History history = new History();
        List<Receiver> receivers = new ArrayList<>();
        try (Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, history, 100).start(500);
            for (int n = 0; n < 3; n++) {
                receivers.add(Receiver.of(lab.stream(topic, "s").consumerName("c" + n).subscribe(), history));
            }
            until("there are as many segments as consumers", () -> lab.active(topic).size() == 3);
            until("each consumer reads", () -> receivers.stream().allMatch(r -> r.count.get() > 0));
            sender.finish();
            history.awaitAll("everything arrives");
        } finally {
            for (Receiver receiver : receivers) {
                receiver.close();
            }
        }
        history.checkOrder();
    }

    private void optedOut(String name) throws Exception {
        String topic = lab.create(name, 1);
        topics.setAutoScalePolicy(topic, eager().enabled(false).build());
        stays(topic, 1);
    }

    private void queues(String name) throws Exception {
        String topic = lab.create(name, 1);
        topics.setAutoScalePolicy(topic, eager().build());
        try (QueueConsumer<String> one = lab.queue(topic, "q").subscribe();
                QueueConsumer<String> two = lab.queue(topic, "q").subscribe()) {
            Words.pause(QUIET_MS);
            same(1, lab.active(topic).size());
        }
    }

    private void merges(String name) throws Exception {
        String topic = lab.create(name, 4);
        topics.setAutoScalePolicy(topic, eager().minSegments(2).build());
        // Somebody must use it: a topic that nobody has open is not reported on.
        try (Producer<String> producer = lab.producer(topic)) {
            new Sender(producer, new History(), 10).send(20);
            until("the idle ones are merged", 60, () -> lab.active(topic).size() == 2);
            Words.pause(QUIET_MS);
            same(2, lab.active(topic).size());
        }
    }

    /** With more stream consumers than segments the number of segments stays. */
    private void stays(String topic, int segments) throws Exception {
        List<AutoCloseable> consumers = new ArrayList<>();
        try {
            for (int n = 0; n <= segments; n++) {
                consumers.add(lab.stream(topic, "s").consumerName("c" + n).subscribe());
            }
            Words.pause(QUIET_MS);
            same(segments, lab.active(topic).size());
        } finally {
            for (AutoCloseable consumer : consumers) {
                consumer.close();
            }
        }
    }

    private String newNamespace(String name) throws Exception {
        String namespace = "public/" + name;
        namespaces.createNamespace(namespace);
        return namespace;
    }

    /** Automation without any waiting. */
    private static AutoScalePolicyOverride.AutoScalePolicyOverrideBuilder eager() {
        return AutoScalePolicyOverride.builder().enabled(true).splitCooldownSeconds(0L).mergeCooldownSeconds(0L)
                .mergeWindowSeconds(0L);
    }

    private static AutoScalePolicyOverride everything() {
        return AutoScalePolicyOverride.builder().enabled(true).maxSegments(8).minSegments(2).maxDagDepth(3)
                .splitCooldownSeconds(30L).mergeCooldownSeconds(120L).mergeWindowSeconds(90L)
                .splitMsgRateInThreshold(2_000.0).splitBytesRateInThreshold(20_000_000L)
                .splitMsgRateOutThreshold(4_000.5).splitBytesRateOutThreshold(40_000_000_000L)
                .mergeMsgRateInThreshold(200.0).mergeBytesRateInThreshold(2_000_000L)
                .mergeMsgRateOutThreshold(400.0).mergeBytesRateOutThreshold(4_000_000L).build();
    }
}
