package anabranch.interop;

import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;

/** Receives in a thread of its own, notes what came, and acknowledges it. */
final class Receiver implements AutoCloseable {
    interface Source {
        Message<String> next(Duration within) throws Exception;
    }

    interface Done {
        void with(Message<String> message) throws Exception;
    }

    final Set<String> keys = ConcurrentHashMap.newKeySet();
    final AtomicInteger count = new AtomicInteger();
    private final AutoCloseable consumer;
    private final Thread thread;
    private volatile boolean ends;
    private volatile Throwable failed;

    private Receiver(AutoCloseable consumer, Source source, Done done, History history) {
        this.consumer = consumer;
        thread = new Thread(() -> {
            try {
                while (!ends) {
                    Message<String> message = source.next(Duration.ofMillis(50));
                    if (message != null) {
                        history.received(message.value());
                        keys.add(message.key().orElse(""));
                        count.incrementAndGet();
                        done.with(message);
                    }
                }
            } catch (Throwable error) {
                if (!ends) {
                    failed = error;
                }
            }
        }, "receiver");
        thread.start();
    }

    static Receiver of(StreamConsumer<String> consumer, History history) {
        return new Receiver(consumer, consumer::receive, m -> consumer.acknowledgeCumulative(m.id()), history);
    }

    static Receiver of(QueueConsumer<String> consumer, History history) {
        return new Receiver(consumer, consumer::receive, m -> consumer.acknowledge(m.id()), history);
    }

    static Receiver of(CheckpointConsumer<String> consumer, History history) {
        return new Receiver(consumer, consumer::receive, m -> { }, history);
    }

    void forgetKeys() {
        keys.clear();
    }

    /** Stops receiving but leaves the consumer as it is. */
    void stop() throws Exception {
        ends = true;
        thread.join(10_000);
        if (failed != null) {
            throw new AssertionError("receiving failed", failed);
        }
    }

    @Override
    public void close() throws Exception {
        stop();
        consumer.close();
    }
}
