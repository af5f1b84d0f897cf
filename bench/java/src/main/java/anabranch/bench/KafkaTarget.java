package anabranch.bench;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.function.LongConsumer;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's client on one partition, with batches as large as Pulsar's client makes them. */
final class KafkaTarget implements Target {
    private final String bootstrap;

    KafkaTarget(Options options) {
        bootstrap = options.text("url");
    }

    @Override
    public void prepare(String topic, String[] subscriptions) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, Optional.of(1), Optional.empty()))).all().get();
        } catch (ExecutionException e) {
            if (!(e.getCause() instanceof TopicExistsException)) {
                throw e;
            }
        }
    }

    @Override
    public Sender sender(String topic, Options options) throws Exception {
        prepare(topic, new String[0]);
        boolean batched = options.flag("batched", true);
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("acks", "all");
        p.put("buffer.memory", Long.toString(options.number("memory_mb", 512) << 20));
        p.put("batch.size", Long.toString(batched ? options.number("batch_bytes", 128 * 1024) : 0));
        p.put("linger.ms", batched ? Long.toString(options.number("linger_us", 1_000) / 1_000) : "0");
        p.put("compression.type", "none");
        p.put("delivery.timeout.ms", "60000");
        p.put("reconnect.backoff.ms", "10");
        p.put("reconnect.backoff.max.ms", "50");
        var producer = new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
        // Kafka bounds bytes, not messages: the semaphore gives both clients the same pending count.
        Semaphore room = new Semaphore((int) options.number("pending", 20_000));
        Callback count = (meta, error) -> {
            room.release();
            Receipts.note(error);
        };
        return new Sender() {
            @Override
            public void send(byte[] payload) throws InterruptedException {
                room.acquire();
                producer.send(new ProducerRecord<>(topic, 0, null, payload), count);
            }

            @Override
            public void send(byte[] payload, long stamp, LongConsumer onReceipt) {
                producer.send(new ProducerRecord<>(topic, 0, null, payload), (meta, error) -> {
                    Receipts.note(error);
                    onReceipt.accept(stamp);
                });
            }

            @Override
            public void flush() {
                producer.flush();
            }

            @Override
            public void close() {
                producer.close();
            }
        };
    }

    @Override
    public Receiver receiver(String topic, String subscription, Options options) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("max.partition.fetch.bytes", "8388608");
        p.put("max.poll.records", "5000");
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", "earliest");
        var consumer = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        var partition = new TopicPartition(topic, 0);
        consumer.assign(List.of(partition));
        if (options.flag("from_end", false)) {
            consumer.seekToEnd(List.of(partition));
            consumer.position(partition);
        } else {
            consumer.seekToBeginning(List.of(partition));
        }
        return new Receiver() {
            @Override
            public long drain(long count) {
                long bytes = 0;
                long n = 0;
                while (n < count) {
                    for (var record : consumer.poll(Duration.ofMillis(200))) {
                        bytes += record.serializedValueSize();
                        n++;
                    }
                }
                return bytes;
            }

            @Override
            public void listen(LongConsumer onStamp) {
                while (!Thread.currentThread().isInterrupted()) {
                    for (var record : consumer.poll(Duration.ofMillis(200))) {
                        onStamp.accept(ByteBuffer.wrap(record.value()).getLong());
                    }
                }
            }

            @Override
            public void close() {
                consumer.close();
            }
        };
    }

    @Override
    public void close() {
        // Every client object is closed by the one who asked for it.
    }
}
