package anabranch.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.ScalableTopics;
import org.apache.pulsar.client.api.v5.CheckpointConsumerBuilder;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumerBuilder;
import org.apache.pulsar.client.api.v5.StreamConsumerBuilder;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;
import org.apache.pulsar.common.policies.data.ScalableTopicMetadata;
import org.apache.pulsar.common.policies.data.ScalableTopicMetadata.SegmentInfo;

/** A broker under test: clients, admin, and the builders that most claims start from. */
final class Lab implements AutoCloseable {
    /** How many brokers are tested, behind one pair of URLs. */
    static final int BROKERS = Integer.parseInt(System.getenv().getOrDefault("BROKERS", "1"));

    final String serviceUrl;
    final String adminUrl;
    final PulsarClient client;
    final PulsarAdmin admin;
    private final BufferedReader answers = new BufferedReader(new InputStreamReader(System.in));

    Lab(String serviceUrl, String adminUrl) throws Exception {
        this.serviceUrl = serviceUrl;
        this.adminUrl = adminUrl;
        client = newClient();
        admin = PulsarAdmin.builder().serviceHttpUrl(adminUrl).requestTimeout(Words.WAIT_S, TimeUnit.SECONDS).build();
    }

    PulsarClient newClient() throws Exception {
        return PulsarClient.builder().serviceUrl(serviceUrl).operationTimeout(Duration.ofSeconds(Words.WAIT_S)).build();
    }

    @Override
    public void close() throws Exception {
        client.close();
        admin.close();
    }

    ScalableTopics topics() {
        return admin.scalableTopics();
    }

    /** A scalable topic of this name with `segments` segments; its full name. */
    String create(String name, int segments) throws Exception {
        String topic = "topic://public/default/" + name;
        topics().createScalableTopic(topic, segments);
        return topic;
    }

    // -- clients

    Producer<String> producer(String topic) throws Exception {
        return client.newProducer(Schema.string()).topic(topic).sendTimeout(Duration.ofSeconds(10)).create();
    }

    StreamConsumerBuilder<String> stream(String topic, String subscription) {
        return stream(client, topic, subscription);
    }

    StreamConsumerBuilder<String> stream(PulsarClient with, String topic, String subscription) {
        return with.newStreamConsumer(Schema.string()).topic(topic).subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST);
    }

    QueueConsumerBuilder<String> queue(String topic, String subscription) {
        return client.newQueueConsumer(Schema.string()).topic(topic).subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST);
    }

    CheckpointConsumerBuilder<String> checkpoint(String topic) {
        return client.newCheckpointConsumer(Schema.string()).topic(topic);
    }

    // -- the layout

    ScalableTopicMetadata metadata(String topic) throws Exception {
        return topics().getMetadata(topic);
    }

    /** Active segments in the order of their ranges. */
    List<SegmentInfo> active(String topic) throws Exception {
        Map<Integer, SegmentInfo> found = new TreeMap<>();
        for (SegmentInfo segment : metadata(topic).getSegments().values()) {
            if (segment.isActive()) {
                found.put(segment.getHashRange().getStart(), segment);
            }
        }
        return new ArrayList<>(found.values());
    }

    List<Long> activeIds(String topic) throws Exception {
        return active(topic).stream().map(SegmentInfo::getSegmentId).collect(Collectors.toList());
    }

    /** Splits the segment at `index` of the active ones. */
    void split(String topic, int index) throws Exception {
        topics().splitSegment(topic, activeIds(topic).get(index));
    }

    /** Merges the active segment at `index` with the one after it. */
    void merge(String topic, int index) throws Exception {
        List<Long> ids = activeIds(topic);
        topics().mergeSegments(topic, ids.get(index), ids.get(index + 1));
    }

    /** One split or merge that the layout allows, with at most `segmentsMax` segments active. */
    void reshape(String topic, Random random, int segmentsMax) throws Exception {
        List<Long> ids = activeIds(topic);
        boolean splits = ids.size() == 1 || ids.size() < segmentsMax && random.nextBoolean();
        if (splits) {
            topics().splitSegment(topic, ids.get(random.nextInt(ids.size())));
        } else {
            int at = random.nextInt(ids.size() - 1);
            topics().mergeSegments(topic, ids.get(at), ids.get(at + 1));
        }
    }

    // -- the broker's process, which belongs to whoever started us

    /** Has the broker killed without notice and started again; returns when it serves. */
    void killAndRestart() throws Exception {
        System.out.println("please restart");
        System.out.flush();
        Words.same("restarted", answers.readLine());
    }
}
