package anabranch.bench;

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * A producer and a consumer for each topic, with default settings, until standard input ends. Receipts, messages and
 * errors go to a file, a line each; `bench/cluster/steady.py` has the format.
 */
final class Steady {
    private static final long DRAIN_SECONDS_MAX = 60;

    private final BufferedWriter out;
    private final List<Set<Long>> confirmed = new ArrayList<>();
    private final List<Set<Long>> received = new ArrayList<>();
    private final AtomicLong unanswered = new AtomicLong();
    private volatile boolean ending;
    private volatile boolean drained;

    private Steady(Path file) throws IOException {
        out = Files.newBufferedWriter(file, StandardCharsets.UTF_8);
    }

    static void run(Options options) throws Exception {
        String[] topics = options.text("topics").split(",");
        Steady steady = new Steady(Path.of(options.text("out")));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(options.text("url")).build()) {
            steady.run(client, topics, options.number("rate", 50));
        }
        steady.out.close();
    }

    private void run(PulsarClient client, String[] topics, long rate) throws Exception {
        List<Producer<byte[]>> producers = new ArrayList<>();
        List<Thread> receiving = new ArrayList<>();
        for (int i = 0; i < topics.length; i++) {
            confirmed.add(ConcurrentHashMap.newKeySet());
            received.add(ConcurrentHashMap.newKeySet());
            Consumer<byte[]> consumer = client.newConsumer().topic(topics[i]).subscriptionName("steady")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            int place = i;
            receiving.add(new Thread(() -> receive(place, consumer)));
            producers.add(client.newProducer().topic(topics[i]).create());
        }
        receiving.forEach(Thread::start);
        for (int i = 0; i < topics.length; i++) {
            send(i, producers.get(i), 0);
        }
        settle(() -> unanswered.get() == 0);
        System.out.println("{\"event\":\"ready\"}");
        System.out.flush();
        Thread sending = new Thread(() -> produce(producers, rate));
        sending.start();
        while (System.in.read() >= 0) {
            // Until it ends.
        }
        ending = true;
        sending.join();
        settle(() -> unanswered.get() == 0 && hasAll());
        drained = true;
        for (Thread thread : receiving) {
            thread.join();
        }
    }

    private void produce(List<Producer<byte[]>> producers, long rate) {
        long gap = 1_000_000_000L / rate;
        long start = System.nanoTime();
        for (long number = 1; !ending; number++) {
            long due = start + number * gap;
            long now;
            while ((now = System.nanoTime()) < due) {
                LockSupport.parkNanos(due - now);
            }
            for (int i = 0; i < producers.size(); i++) {
                send(i, producers.get(i), number);
            }
        }
    }

    private void send(int place, Producer<byte[]> producer, long number) {
        long sent = micros();
        unanswered.incrementAndGet();
        producer.sendAsync(Long.toString(number).getBytes(StandardCharsets.UTF_8)).whenComplete((id, error) -> {
            if (error == null) {
                confirmed.get(place).add(number);
                note("r " + place + " " + number + " " + sent + " " + micros());
            } else {
                note("x " + place + " " + number + " " + error);
            }
            unanswered.decrementAndGet();
        });
    }

    private void receive(int place, Consumer<byte[]> consumer) {
        while (!drained) {
            try {
                Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                if (message != null) {
                    long number = Long.parseLong(new String(message.getData(), StandardCharsets.UTF_8));
                    note("m " + place + " " + number);
                    received.get(place).add(number);
                    consumer.acknowledge(message);
                }
            } catch (PulsarClientException error) {
                note("e receive: " + error);
            }
        }
    }

    private boolean hasAll() {
        for (int i = 0; i < confirmed.size(); i++) {
            if (!received.get(i).containsAll(confirmed.get(i))) {
                return false;
            }
        }
        return true;
    }

    private interface Claim {
        boolean holds();
    }

    private static void settle(Claim claim) throws InterruptedException {
        long patience = System.nanoTime() + TimeUnit.SECONDS.toNanos(DRAIN_SECONDS_MAX);
        while (!claim.holds() && System.nanoTime() < patience) {
            Thread.sleep(20);
        }
    }

    private synchronized void note(String line) {
        try {
            out.write(line.replace('\n', ' '));
            out.write('\n');
        } catch (IOException error) {
            System.err.println(error);
        }
    }

    private static long micros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000L + now.getNano() / 1_000;
    }
}
