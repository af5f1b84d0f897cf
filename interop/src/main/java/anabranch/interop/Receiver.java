package anabranch.interop;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
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
    /** How many of those counted were acknowledged; the very same number unless it happens later. */
    private volatile AtomicInteger acknowledged = count;
    private volatile boolean ends;
    private volatile Throwable failed;

    private Receiver(AutoCloseable consumer, Source source, Done done, History history) {
        this.consumer = consumer;
        thread = new Thread(() -> {
            try {
                while (!ends) {
                    Message<String> message = source.next(Duration.ofMillis(50));
                    if (message != null) {
                        // Counted before it is known to have come: whoever waits for it may then ask what is still to
                        // be acknowledged.
                        count.incrementAndGet();
                        keys.add(message.key().orElse(""));
                        history.received(message.value());
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
        Lagging lagging = new Lagging(consumer);
        Receiver receiver = new Receiver(consumer, lagging::next, lagging::note, history);
        receiver.acknowledged = lagging.acknowledged;
        return receiver;
    }

    static Receiver of(QueueConsumer<String> consumer, History history) {
        return new Receiver(consumer, consumer::receive, m -> consumer.acknowledge(m.id()), history);
    }

    static Receiver of(CheckpointConsumer<String> consumer, History history) {
        return new Receiver(consumer, consumer::receive, m -> { }, history);
    }

    /**
     * Acknowledges what came a while ago. An id of this client (5.0.0-M1) can cover a message of another segment that is
     * still on its way to us; were we to leave right then, nobody would ever see that message. So what came last before
     * we leave stays unacknowledged, and comes again, unless `awaitAcknowledged` was called before.
     */
    private static final class Lagging {
        private static final long LAG_NS = 20_000_000;

        private final StreamConsumer<String> consumer;
        private final ArrayDeque<Map.Entry<Long, MessageId>> due = new ArrayDeque<>();
        final AtomicInteger acknowledged = new AtomicInteger();

        Lagging(StreamConsumer<String> consumer) {
            this.consumer = consumer;
        }

        Message<String> next(Duration within) throws Exception {
            MessageId last = null;
            int taken = 0;
            while (!due.isEmpty() && due.peek().getKey() < System.nanoTime()) {
                last = due.poll().getValue();
                taken++;
            }
            if (last != null) {
                consumer.acknowledgeCumulative(last);
                acknowledged.addAndGet(taken);
            }
            return consumer.receive(due.isEmpty() ? within : Duration.ofMillis(10));
        }

        void note(Message<String> message) {
            due.add(Map.entry(System.nanoTime() + LAG_NS, message.id()));
        }
    }

    void forgetKeys() {
        keys.clear();
    }

    /** Waits until what has come so far is acknowledged; closing the consumer then sends it before anything else. */
    void awaitAcknowledged() throws Exception {
        int come = count.get();
        Words.until("what has come is acknowledged", () -> acknowledged.get() >= come);
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
