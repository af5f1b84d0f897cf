package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.until;

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiFunction;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;

/**
 * On a broker that deduplicates and is killed twice under each producer: all that is sent is receipted, and stored once,
 * however the client batches.
 */
final class DedupClaims {
    private static final int COUNT = 3000;
    private static final int KEYS = 7;
    private static final int BATCH = 50;

    private final Lab lab;

    DedupClaims(Lab lab) {
        this.lab = lab;
    }

    Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("single messages are stored once", name -> classic(name, builder -> builder.enableBatching(false)));
        claims.put("batches are stored once", name -> classic(name, this::batched));
        claims.put("batches by key are stored once",
                name -> classic(name, builder -> batched(builder).batcherBuilder(BatcherBuilder.KEY_BASED)));
        claims.put("single messages of the newer client are stored once",
                name -> newer(name, BatchingPolicy.ofDisabled()));
        claims.put("batches of the newer client are stored once",
                name -> newer(name, BatchingPolicy.builder().enabled(true).maxMessages(BATCH)
                        .maxPublishDelay(Duration.ofMillis(5)).build()));
        claims.put("a producer that comes back is told its last id", this::told);
        return claims;
    }

    interface Choice {
        ProducerBuilder<String> of(ProducerBuilder<String> builder);
    }

    private ProducerBuilder<String> batched(ProducerBuilder<String> builder) {
        return builder.enableBatching(true).batchingMaxMessages(BATCH)
                .batchingMaxPublishDelay(5, TimeUnit.MILLISECONDS);
    }

    private void classic(String topic, Choice choice) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(lab.serviceUrl).build()) {
            // Somebody has yet to read it, so that nothing is given up however long this takes.
            client.newConsumer().topic(topic).subscriptionName("keeper").subscribe().close();
            try (Producer<String> producer = choice.of(client.newProducer(Schema.STRING).topic(topic)
                    .producerName("sender").sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true)).create()) {
                send((key, value) -> producer.newMessage().key(key).value(value).sendAsync());
            }
            List<String> stored = new ArrayList<>();
            try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic)
                    .startMessageId(MessageId.earliest).create()) {
                while (reader.hasMessageAvailable()) {
                    Message<String> message = reader.readNext(Words.WAIT_S, TimeUnit.SECONDS);
                    check(message != null, "what is there is read");
                    stored.add(message.getValue());
                }
            }
            judge(stored);
        }
    }

    private void newer(String name, BatchingPolicy policy) throws Exception {
        String topic = lab.create(name, 2);
        lab.queue(topic, "keeper").subscribe().close();
        try (org.apache.pulsar.client.api.v5.Producer<String> producer =
                lab.client.newProducer(org.apache.pulsar.client.api.v5.schema.Schema.string()).topic(topic)
                        .producerName("sender").sendTimeout(Duration.ofSeconds(120)).batchingPolicy(policy).create()) {
            send((key, value) -> producer.async().newMessage().key(key).value(value).send());
        }
        List<String> stored = new ArrayList<>();
        try (CheckpointConsumer<String> consumer =
                lab.checkpoint(topic).startPosition(Checkpoint.earliest()).create()) {
            while (true) {
                var message = consumer.receive(Duration.ofSeconds(stored.size() < COUNT ? Words.WAIT_S : 1));
                if (message == null) {
                    break;
                }
                stored.add(message.value());
            }
        }
        judge(stored);
    }

    /** Sends everything, the broker being killed after a third and after two thirds; all of it is receipted. */
    private void send(BiFunction<String, String, CompletableFuture<?>> send) throws Exception {
        AtomicInteger receipted = new AtomicInteger();
        ConcurrentLinkedQueue<Throwable> failures = new ConcurrentLinkedQueue<>();
        Thread sending = new Thread(() -> {
            for (int n = 0; n < COUNT; n++) {
                send.apply("k" + n % KEYS, String.valueOf(n)).whenComplete((id, error) -> {
                    if (error == null) {
                        receipted.incrementAndGet();
                    } else {
                        failures.add(error);
                    }
                });
                if (n % BATCH == 0) {
                    try {
                        Words.pause(5);
                    } catch (InterruptedException ended) {
                        return;
                    }
                }
            }
        }, "sender");
        sending.start();
        for (int share = 1; share < 3; share++) {
            int enough = COUNT * share / 3;
            until(enough + " receipts", 60, () -> receipted.get() + failures.size() >= enough);
            lab.killAndRestart();
        }
        until("every receipt", 60, () -> receipted.get() + failures.size() == COUNT);
        sending.join();
        same(List.of(), List.copyOf(failures));
    }

    private void judge(List<String> stored) {
        same(COUNT, stored.size());
        for (int key = 0; key < KEYS; key++) {
            int expected = key;
            for (String value : stored) {
                int number = Integer.parseInt(value);
                if (number % KEYS == key) {
                    same(expected, number);
                    expected += KEYS;
                }
            }
            check(expected >= COUNT, "the last one of a key is " + (expected - KEYS));
        }
    }

    private void told(String topic) throws Exception {
        long last = -1;
        for (int life = 0; life < 3; life++) {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(lab.serviceUrl).build();
                    Producer<String> producer = batched(client.newProducer(Schema.STRING).topic(topic)
                            .producerName("sender")).create()) {
                same(last, producer.getLastSequenceId());
                for (int n = 0; n < 120; n++) {
                    producer.newMessage().value("x").sendAsync();
                }
                producer.flush();
                last += 120;
            }
            lab.killAndRestart();
        }
    }
}
