package anabranch.bench;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.concurrent.Semaphore;
import java.util.function.BiConsumer;
import java.util.function.LongConsumer;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.async.AsyncProducer;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ConnectionPolicy;
import org.apache.pulsar.client.api.v5.config.MemorySize;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;
import org.apache.pulsar.common.policies.data.ScalableSubscriptionType;

/** Pulsar's V5 client on a scalable topic with keyed messages: its producer and its stream consumer. */
final class V5Target implements Target {
    private static final int KEYS = 1_000;

    final PulsarAdmin admin;
    private final PulsarClient client;
    private final int segments;

    V5Target(Options options) throws Exception {
        segments = (int) options.number("segments", 4);
        admin = PulsarAdmin.builder().serviceHttpUrl(options.text("web")).build();
        client = newClient(options);
    }

    static PulsarClient newClient(Options options) throws Exception {
        return PulsarClient.builder()
                .serviceUrl(options.text("url"))
                .memoryLimit(MemorySize.ofMegabytes(options.number("memory_mb", 512)))
                .connectionPolicy(ConnectionPolicy.builder().ioThreads((int) options.number("io_threads", 1))
                        .callbackThreads(1).build())
                .build();
    }

    /** Makes the topic if it is not there. */
    void create(String topic) throws PulsarAdminException {
        try {
            admin.scalableTopics().createScalableTopic(topic, segments);
        } catch (PulsarAdminException.ConflictException exists) {
            // A second load on the same topic.
        }
    }

    @Override
    public void prepare(String topic, String[] subscriptions) throws PulsarAdminException {
        create(topic);
        for (String name : subscriptions) {
            admin.scalableTopics().createSubscription(topic, name, ScalableSubscriptionType.STREAM);
        }
    }

    Producer<byte[]> producer(String topic, Options options) throws Exception {
        return client.newProducer(Schema.bytes()).topic(topic).sendTimeout(Duration.ofSeconds(60))
                .blockIfQueueFull(false)
                .batchingPolicy(BatchingPolicy.builder().enabled(options.flag("batched", true))
                        .maxMessages((int) options.number("batch_messages", 10_000))
                        .maxSize(MemorySize.ofBytes(options.number("batch_bytes", 128 * 1024)))
                        .maxPublishDelay(Duration.ofNanos(1_000 * options.number("linger_us", 1_000))).build())
                .create();
    }

    @Override
    public Sender sender(String topic, Options options) throws Exception {
        create(topic);
        Producer<byte[]> producer = producer(topic, options);
        AsyncProducer<byte[]> async = producer.async();
        String[] keys = keys(KEYS);
        // This client can dead-lock when it blocks for room by itself.
        Semaphore room = new Semaphore((int) options.number("pending", 20_000));
        BiConsumer<MessageId, Throwable> count = (id, error) -> {
            room.release();
            Receipts.note(error);
        };
        return new Sender() {
            private int at;

            @Override
            public void send(byte[] payload) throws InterruptedException {
                room.acquire();
                async.newMessage().key(keys[at++ % KEYS]).value(payload).send().whenComplete(count);
            }

            @Override
            public void send(byte[] payload, long stamp, LongConsumer onReceipt) throws InterruptedException {
                room.acquire();
                async.newMessage().key(keys[at++ % KEYS]).value(payload).send().whenComplete((id, error) -> {
                    count.accept(id, error);
                    onReceipt.accept(stamp);
                });
            }

            @Override
            public void flush() {
                async.flush().join();
            }

            @Override
            public void close() throws Exception {
                producer.close();
            }
        };
    }

    static String[] keys(int count) {
        String[] keys = new String[count];
        for (int n = 0; n < count; n++) {
            keys[n] = "key-" + n;
        }
        return keys;
    }

    @Override
    public Receiver receiver(String topic, String subscription, Options options) throws Exception {
        int ackEvery = (int) options.number("ack_every", 1_000);
        StreamConsumer<byte[]> consumer = client.newStreamConsumer(Schema.bytes()).topic(topic)
                .subscriptionName(subscription).subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe();
        return new Receiver() {
            @Override
            public long drain(long count) throws Exception {
                long bytes = 0;
                for (long n = 1; n <= count; n++) {
                    Message<byte[]> message = consumer.receive();
                    bytes += message.size();
                    if (n % ackEvery == 0) {
                        consumer.acknowledgeCumulative(message.id());
                    }
                }
                return bytes;
            }

            @Override
            public void listen(LongConsumer onStamp) throws Exception {
                while (!Thread.currentThread().isInterrupted()) {
                    Message<byte[]> message = consumer.receive(Duration.ofMillis(200));
                    if (message != null) {
                        onStamp.accept(ByteBuffer.wrap(message.data()).getLong());
                        consumer.acknowledgeCumulative(message.id());
                    }
                }
            }

            @Override
            public void close() throws Exception {
                consumer.close();
            }
        };
    }

    @Override
    public void close() throws Exception {
        client.close();
        admin.close();
    }
}
