package anabranch.bench;

import java.nio.ByteBuffer;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.LongConsumer;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SizeUnit;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** Pulsar's classic client, tuned as a user who wants throughput would tune it. Serves ours and the real one. */
final class PulsarTarget implements Target {
    private static final BiConsumer<MessageId, Throwable> COUNT = (id, error) -> Receipts.note(error);

    private final PulsarClient client;

    PulsarTarget(Options options) throws PulsarClientException {
        client = PulsarClient.builder()
                .serviceUrl(options.text("url"))
                // The pending count bounds memory; the byte limit (64 MB by default) would bind first at 10 KB.
                .memoryLimit(options.number("memory_mb", 512), SizeUnit.MEGA_BYTES)
                .ioThreads((int) options.number("io_threads", 1))
                .listenerThreads(1)
                .statsInterval(0, TimeUnit.SECONDS)
                .startingBackoffInterval(10, TimeUnit.MILLISECONDS)
                .maxBackoffInterval(50, TimeUnit.MILLISECONDS)
                .build();
    }

    @Override
    public void prepare(String topic, String[] subscriptions) throws PulsarClientException {
        for (String name : subscriptions) {
            client.newConsumer().topic(topic).subscriptionName(name)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe().close();
        }
    }

    @Override
    public Sender sender(String topic, Options options) throws PulsarClientException {
        boolean batched = options.flag("batched", true);
        var builder = client.newProducer()
                .topic(topic)
                .maxPendingMessages((int) options.number("pending", 20_000))
                .blockIfQueueFull(true)
                .sendTimeout(60, TimeUnit.SECONDS)
                .enableBatching(batched);
        if (batched) {
            builder.batchingMaxMessages((int) options.number("batch_messages", 10_000))
                    .batchingMaxBytes((int) options.number("batch_bytes", 128 * 1024))
                    .batchingMaxPublishDelay(options.number("linger_us", 1_000), TimeUnit.MICROSECONDS);
        }
        Producer<byte[]> producer = builder.create();
        return new Sender() {
            @Override
            public void send(byte[] payload) {
                producer.sendAsync(payload).whenComplete(COUNT);
            }

            @Override
            public void send(byte[] payload, long stamp, LongConsumer onReceipt) {
                producer.sendAsync(payload).whenComplete((id, error) -> {
                    Receipts.note(error);
                    onReceipt.accept(stamp);
                });
            }

            @Override
            public void flush() throws PulsarClientException {
                producer.flush();
            }

            @Override
            public void close() throws PulsarClientException {
                producer.close();
            }
        };
    }

    @Override
    public Receiver receiver(String topic, String subscription, Options options) throws PulsarClientException {
        int ackEvery = (int) options.number("ack_every", 1_000);
        Consumer<byte[]> consumer = client.newConsumer()
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionType(SubscriptionType.Exclusive)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .receiverQueueSize((int) options.number("queue", 10_000))
                .subscribe();
        return new Receiver() {
            @Override
            public long drain(long count) throws PulsarClientException {
                long bytes = 0;
                for (long n = 1; n <= count; n++) {
                    Message<byte[]> message = consumer.receive();
                    bytes += message.size();
                    if (ackEvery == 1) {
                        consumer.acknowledgeAsync(message.getMessageId());
                    } else if (n % ackEvery == 0) {
                        consumer.acknowledgeCumulativeAsync(message.getMessageId());
                    }
                }
                return bytes;
            }

            @Override
            public void listen(LongConsumer onStamp) throws PulsarClientException {
                while (!Thread.currentThread().isInterrupted()) {
                    Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                    if (message == null) {
                        continue;
                    }
                    onStamp.accept(ByteBuffer.wrap(message.getData()).getLong());
                    consumer.acknowledgeAsync(message.getMessageId());
                }
            }

            @Override
            public void close() throws PulsarClientException {
                consumer.close();
            }
        };
    }

    @Override
    public void close() throws PulsarClientException {
        client.close();
    }
}
