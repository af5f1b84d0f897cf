package anabranch.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * One V5 client beside clients of other languages. It does what its arguments say until standard input ends, and tells
 * each step in a line. Arguments: service URL, then one of
 *
 * <pre>
 * produce TOPIC KEYS           sends key:number, some at once; 0 keys: messages without a key
 * stream TOPIC SUBSCRIPTION NAME
 * queue TOPIC SUBSCRIPTION NAME
 * </pre>
 *
 * A producer is told how many messages to send at once, or with `each` before the number one after the other: 5.0.0-M1
 * does not keep the order of messages under way to a segment that is sealed. A consumer is told `hold` (it receives and does not acknowledge), `ack` (it
 * acknowledges what it has, and each message from then on) or `leave` (it closes the consumer and keeps its client).
 */
public final class Worker {
    private static final Duration SHORT = Duration.ofMillis(20);

    private final Queue<String> told = new ConcurrentLinkedQueue<>();
    private volatile boolean ends;

    private Worker() {
    }

    public static void main(String[] arguments) throws Exception {
        Worker worker = new Worker();
        Thread listening = new Thread(worker::listen, "listening");
        listening.setDaemon(true);
        listening.start();
        try (PulsarClient client =
                PulsarClient.builder().serviceUrl(arguments[0]).operationTimeout(Duration.ofSeconds(30)).build()) {
            switch (arguments[1]) {
                case "produce" -> worker.produce(client, arguments[2], Integer.parseInt(arguments[3]));
                case "stream" -> worker.stream(client, arguments[2], arguments[3], arguments[4]);
                case "queue" -> worker.queue(client, arguments[2], arguments[3], arguments[4]);
                default -> throw new IllegalArgumentException(arguments[1]);
            }
        } catch (Throwable error) {
            say("failed " + error);
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private void listen() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                told.add(line.strip());
            }
        } catch (Exception error) {
            say("failed " + error);
        }
        ends = true;
    }

    private void produce(PulsarClient client, String topic, int keys) throws Exception {
        int sent = 0;
        try (Producer<byte[]> producer = client.newProducer(Schema.bytes()).topic(topic).create()) {
            say("ready");
            while (!ends || !told.isEmpty()) {
                String order = told.poll();
                if (order == null) {
                    Thread.sleep(5);
                    continue;
                }
                boolean inTurn = order.startsWith("each ");
                String count = inTurn ? order.substring(5) : order;
                List<CompletableFuture<?>> answers = new ArrayList<>();
                for (int n = Integer.parseInt(count); n > 0; n--, sent++) {
                    String key = keys == 0 ? "none" : "key-" + sent % keys;
                    var message = producer.async().newMessage().value((key + ":" + sent).getBytes(StandardCharsets.UTF_8));
                    CompletableFuture<?> answer = keys == 0 ? message.send() : message.key(key).send();
                    if (inTurn) {
                        answer.get();
                    }
                    answers.add(answer);
                }
                for (CompletableFuture<?> answer : answers) {
                    answer.get();
                }
                say("sent " + count);
            }
        }
    }

    private void stream(PulsarClient client, String topic, String subscription, String name) throws Exception {
        StreamConsumer<byte[]> consumer = client.newStreamConsumer(Schema.bytes()).topic(topic)
                .subscriptionName(subscription).consumerName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
        say("ready");
        MessageId last = null;
        boolean holds = false;
        while (!ends) {
            String word = told.poll();
            if ("leave".equals(word)) {
                consumer.close();
                say("left");
                return;
            }
            holds = word == null ? holds : word.equals("hold");
            if (last != null && !holds) {
                consumer.acknowledgeCumulative(last);
                last = null;
            }
            if ("ack".equals(word) || "hold".equals(word)) {
                say(word);
            }
            Message<byte[]> message = consumer.receive(SHORT);
            if (message != null) {
                say("got " + new String(message.value(), StandardCharsets.UTF_8));
                last = message.id();
            }
        }
        consumer.close();
    }

    private void queue(PulsarClient client, String topic, String subscription, String name) throws Exception {
        QueueConsumer<byte[]> consumer = client.newQueueConsumer(Schema.bytes()).topic(topic)
                .subscriptionName(subscription).consumerName(name)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe();
        say("ready");
        ArrayDeque<MessageId> held = new ArrayDeque<>();
        boolean holds = false;
        while (!ends) {
            String word = told.poll();
            if ("leave".equals(word)) {
                consumer.close();
                say("left");
                return;
            }
            holds = word == null ? holds : word.equals("hold");
            while (!holds && !held.isEmpty()) {
                consumer.acknowledge(held.poll());
            }
            if ("ack".equals(word) || "hold".equals(word)) {
                say(word);
            }
            Message<byte[]> message = consumer.receive(SHORT);
            if (message != null) {
                say("got " + new String(message.value(), StandardCharsets.UTF_8));
                held.add(message.id());
            }
        }
        consumer.close();
    }
}
