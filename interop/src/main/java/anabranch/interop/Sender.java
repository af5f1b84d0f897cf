package anabranch.interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClientException;

/** Sends numbered messages under many keys, at once or from a thread of its own, and notes what was confirmed. */
final class Sender implements AutoCloseable {
    private static final int IN_FLIGHT_MAX = 500;

    final AtomicInteger failures = new AtomicInteger();
    private final Producer<String> producer;
    private final History history;
    private final int keys;
    private final boolean inTurn;
    private final String prefix;
    private final Map<String, Integer> next = new ConcurrentHashMap<>();
    private final Semaphore room = new Semaphore(IN_FLIGHT_MAX);
    private int at;
    private Thread thread;
    private volatile boolean ends;
    private volatile Throwable failed;

    /** `inTurn`: each send waits for the one before it, so that the order of every key is kept. */
    Sender(Producer<String> producer, History history, int keys, boolean inTurn, String prefix) {
        this.producer = producer;
        this.history = history;
        this.keys = keys;
        this.inTurn = inTurn;
        this.prefix = prefix;
    }

    Sender(Producer<String> producer, History history, int keys) {
        this(producer, history, keys, true, "k");
    }

    Sender send(int count) throws Exception {
        for (int n = 0; n < count; n++) {
            sendOne();
        }
        settle();
        return this;
    }

    private void sendOne() throws Exception {
        String key = prefix + at++ % keys;
        String value = key + ":" + next.merge(key, 1, Integer::sum);
        if (inTurn) {
            sendInTurn(key, value);
            return;
        }
        Words.check(room.tryAcquire(60, TimeUnit.SECONDS), "confirmations stopped coming");
        sendAtOnce(key, value);
    }

    private void sendInTurn(String key, String value) throws Exception {
        while (true) {
            try {
                producer.newMessage().key(key).value(value).send();
                history.confirmed(value);
                return;
            } catch (PulsarClientException error) {
                if (!isTheClientsOwn(error)) {
                    throw error;
                }
            }
        }
    }

    private void sendAtOnce(String key, String value) {
        CompletableFuture<?> answer = producer.async().newMessage().key(key).value(value).send();
        answer.whenComplete((id, error) -> {
            if (error != null && isTheClientsOwn(error)) {
                CompletableFuture.delayedExecutor(10, TimeUnit.MILLISECONDS).execute(() -> sendAtOnce(key, value));
                return;
            }
            if (error == null) {
                history.confirmed(value);
            } else {
                failures.incrementAndGet();
                failed = error;
            }
            room.release();
        });
    }

    /**
     * Two faults of 5.0.0-M1 that no broker can help, after which a message is sent again: a layout that arrives between
     * the choice of a segment and its use; and a message that enters a batch just after its segment was found sealed,
     * which then waits for its time to run out.
     */
    private static boolean isTheClientsOwn(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            String told = String.valueOf(cause.getMessage());
            if (told.contains("not found in active segments") || told.contains("within given timeout")) {
                return true;
            }
        }
        return false;
    }

    /** Sends until `finish`, pausing `every` microseconds in between. */
    Sender start(long every) {
        thread = new Thread(() -> {
            try {
                while (!ends) {
                    sendOne();
                    TimeUnit.MICROSECONDS.sleep(every);
                }
                settle();
            } catch (Throwable error) {
                failures.incrementAndGet();
                failed = error;
            }
        }, "sender " + prefix);
        thread.start();
        return this;
    }

    private void settle() throws InterruptedException {
        Words.check(room.tryAcquire(IN_FLIGHT_MAX, 60, TimeUnit.SECONDS), "confirmations stopped coming");
        room.release(IN_FLIGHT_MAX);
    }

    /** Ends the thread; every send must have been confirmed. */
    void finish() throws Exception {
        close();
        if (failed != null) {
            throw new AssertionError(failures + " sends failed", failed);
        }
    }

    @Override
    public void close() throws Exception {
        ends = true;
        if (thread != null) {
            thread.join(90_000);
            Words.check(!thread.isAlive(), "a send never came back");
        }
    }
}
