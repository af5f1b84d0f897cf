package anabranch.interop;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BooleanSupplier;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Claims about a broker, checked with Pulsar's classic Java client. Arguments: service URL, admin URL and, if not all
 * claims are to be checked, a part of the names of those that are.
 */
public final class ClassicClaims {
    interface Claim {
        void check(String topic) throws Exception;
    }

    private static final int WAIT_S = 15;
    private static String serviceUrl;
    private static String adminUrl;
    private static PulsarClient client;

    public static void main(String[] arguments) throws Exception {
        serviceUrl = arguments[0];
        adminUrl = arguments[1];
        client = PulsarClient.builder().serviceUrl(serviceUrl).operationTimeout(20, TimeUnit.SECONDS).build();
        Map<String, Claim> claims = claims();
        int failed = 0;
        for (Map.Entry<String, Claim> claim : claims.entrySet()) {
            String name = claim.getKey();
            if (arguments.length > 2 && !name.contains(arguments[2])) {
                continue;
            }
            String topic = "java-" + name.replace(' ', '-') + "-" + System.nanoTime();
            try {
                claim.getValue().check(topic);
                System.out.println("ok " + name);
            } catch (Throwable error) {
                failed++;
                System.out.println("FAILED " + name + ": " + error);
                error.printStackTrace();
            }
        }
        client.close();
        System.exit(failed == 0 ? 0 : 1);
    }

    private static Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("batches arrive in order with their ids", ClassicClaims::batches);
        claims.put("large messages arrive from their chunks", ClassicClaims::chunks);
        claims.put("every compression passes through", ClassicClaims::compressions);
        claims.put("key shared keeps keys together and in order", ClassicClaims::keyShared);
        claims.put("sticky ranges are kept", ClassicClaims::sticky);
        claims.put("readers start where asked", ClassicClaims::readers);
        claims.put("seek by id and time", ClassicClaims::seeks);
        claims.put("batch index acks are kept", ClassicClaims::batchIndexAcks);
        claims.put("acks with receipts", ClassicClaims::ackReceipts);
        claims.put("partitioned topics", ClassicClaims::partitions);
        claims.put("json and avro schemas with evolution", ClassicClaims::schemas);
        claims.put("key value schemas", ClassicClaims::keyValues);
        claims.put("table views", ClassicClaims::tableViews);
        claims.put("patterns find later topics", ClassicClaims::patterns);
        claims.put("negative acks end in the dead letter topic", ClassicClaims::deadLetters);
        claims.put("retry letters", ClassicClaims::retryLetters);
        claims.put("failover tells who is active", ClassicClaims::failover);
        claims.put("producer access modes", ClassicClaims::accessModes);
        claims.put("sequence ids are deduplicated", ClassicClaims::deduplication);
        claims.put("delayed delivery", ClassicClaims::delays);
        claims.put("the end of a terminated topic", ClassicClaims::endOfTopic);
        claims.put("an unloaded topic comes back", ClassicClaims::unload);
        claims.put("transactions are refused", ClassicClaims::transactions);
        return claims;
    }

    // -- claims

    private static void batches(String topic) throws Exception {
        try (Consumer<byte[]> consumer = subscribe(topic, SubscriptionType.Exclusive)) {
            Producer<byte[]> producer = client.newProducer().topic(topic).batchingMaxMessages(10)
                    .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int n = 0; n < 25; n++) {
                sent.add(producer.newMessage().key("k").property("n", "" + n).value(bytes(n)).sendAsync());
            }
            producer.flush();
            for (int n = 0; n < 25; n++) {
                Message<byte[]> message = next(consumer);
                same(n, number(message));
                same(sent.get(n).get(), message.getMessageId());
                same("" + n, message.getProperty("n"));
                consumer.acknowledgeCumulative(message);
            }
            same(sent.get(24).get(), consumer.getLastMessageIds().get(0));
            nothing(consumer);
        }
    }

    private static void chunks(String topic) throws Exception {
        Producer<byte[]> producer =
                client.newProducer().topic(topic).enableChunking(true).enableBatching(false).create();
        for (SubscriptionType kind : List.of(SubscriptionType.Exclusive, SubscriptionType.Shared)) {
            try (Consumer<byte[]> consumer = subscribe(topic, kind)) {
                byte[] large = new byte[12 << 20];
                Arrays.fill(large, (byte) kind.ordinal());
                MessageId id = producer.send(large);
                producer.send(bytes(7));
                Message<byte[]> message = next(consumer);
                check(Arrays.equals(large, message.getValue()), "content");
                same(id, message.getMessageId());
                consumer.acknowledge(message);
                message = next(consumer);
                same(7, number(message));
                consumer.acknowledge(message);
            }
        }
    }

    private static void compressions(String topic) throws Exception {
        try (Consumer<byte[]> consumer = subscribe(topic, SubscriptionType.Exclusive)) {
            for (CompressionType kind : CompressionType.values()) {
                try (Producer<byte[]> producer =
                        client.newProducer().topic(topic).compressionType(kind).create()) {
                    producer.send(bytes(kind.ordinal()));
                    same(kind.ordinal(), number(next(consumer)));
                }
            }
        }
    }

    private static void keyShared(String topic) throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        for (int n = 0; n < 3; n++) {
            consumers.add(subscribe(topic, SubscriptionType.Key_Shared));
        }
        Producer<byte[]> producer =
                client.newProducer().topic(topic).batcherBuilder(BatcherBuilder.KEY_BASED).create();
        for (int n = 0; n < 300; n++) {
            producer.newMessage().key("k" + n % 30).value(bytes(n)).sendAsync();
        }
        producer.flush();
        Map<String, Integer> last = new HashMap<>();
        Map<String, Integer> owner = new HashMap<>();
        int received = 0;
        for (int n = 0; n < 3; n++) {
            Message<byte[]> message;
            while ((message = consumers.get(n).receive(500, TimeUnit.MILLISECONDS)) != null) {
                consumers.get(n).acknowledge(message);
                received++;
                int number = number(message);
                check(last.getOrDefault(message.getKey(), -1) < number, "order of " + message.getKey());
                last.put(message.getKey(), number);
                same(n, owner.computeIfAbsent(message.getKey(), key -> -1) < 0 ? n : owner.get(message.getKey()));
                owner.put(message.getKey(), n);
            }
        }
        same(300, received);
        check(new TreeSet<>(owner.values()).size() == 3, "all consumers got keys");
        for (Consumer<byte[]> consumer : consumers) {
            consumer.close();
        }
    }

    private static void sticky(String topic) throws Exception {
        Consumer<byte[]> low = sticky(topic, Range.of(0, 32767));
        Consumer<byte[]> high = sticky(topic, Range.of(32768, 65535));
        refused(() -> sticky(topic, Range.of(5, 10)));
        Producer<byte[]> producer = client.newProducer().topic(topic).create();
        for (int n = 0; n < 40; n++) {
            producer.newMessage().key("k" + n).value(bytes(n)).send();
        }
        int received = 0;
        for (Consumer<byte[]> consumer : List.of(low, high)) {
            while (consumer.receive(500, TimeUnit.MILLISECONDS) != null) {
                received++;
            }
        }
        same(40, received);
    }

    private static Consumer<byte[]> sticky(String topic, Range range) throws PulsarClientException {
        return client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Key_Shared)
                .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(range)).subscribe();
    }

    private static void readers(String topic) throws Exception {
        List<MessageId> ids = fill(topic, 10, true);
        same(range(0, 10), read(client.newReader().topic(topic).startMessageId(MessageId.earliest).create()));
        same(range(5, 10), read(client.newReader().topic(topic).startMessageId(ids.get(4)).create()));
        same(range(4, 10), read(
                client.newReader().topic(topic).startMessageId(ids.get(4)).startMessageIdInclusive().create()));
        same(range(9, 10), read(
                client.newReader().topic(topic).startMessageId(MessageId.latest).startMessageIdInclusive().create()));
        Reader<byte[]> tail = client.newReader().topic(topic).startMessageId(MessageId.latest).create();
        check(!tail.hasMessageAvailable(), "nothing after the latest");
        fill(topic, 1, false);
        same(0, number(tail.readNext(WAIT_S, TimeUnit.SECONDS)));
        same(range(0, 10), read(client.newReader().topic(topic)
                .startMessageFromRollbackDuration(1, TimeUnit.HOURS).create()).subList(0, 10));
    }

    private static void seeks(String topic) throws Exception {
        List<MessageId> ids = fill(topic, 5, true);
        Thread.sleep(20);
        long between = System.currentTimeMillis();
        Thread.sleep(20);
        fill(topic, 5, false);
        Consumer<byte[]> consumer = subscribe(topic, SubscriptionType.Exclusive);
        consumer.seek(ids.get(2));
        same(2, number(next(consumer)) - 1);
        consumer.seek(between);
        same(0, number(next(consumer)));
        consumer.seek(MessageId.earliest);
        for (int n = 0; n < 10; n++) {
            same(n % 5, number(next(consumer)));
        }
        consumer.seek(MessageId.latest);
        nothing(consumer);
        consumer.close();
    }

    private static void batchIndexAcks(String topic) throws Exception {
        for (SubscriptionType kind : List.of(SubscriptionType.Exclusive, SubscriptionType.Shared)) {
            Consumer<byte[]> consumer = indexed(topic, kind);
            fill(topic, 10, true);
            for (int n = 0; n < 10; n++) {
                Message<byte[]> message = next(consumer);
                if (n % 3 != 0) {
                    consumer.acknowledge(message);
                }
            }
            consumer.close();
            Consumer<byte[]> again = indexed(topic, kind);
            for (int n = 0; n < 10; n += 3) {
                Message<byte[]> message = next(again);
                same(n, number(message));
                again.acknowledge(message);
            }
            nothing(again);
            again.close();
        }
    }

    private static Consumer<byte[]> indexed(String topic, SubscriptionType kind) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName("s" + kind).subscriptionType(kind)
                .enableBatchIndexAcknowledgment(true).subscribe();
    }

    private static void ackReceipts(String topic) throws Exception {
        Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).isAckReceiptEnabled(true).subscribe();
        fill(topic, 20, true);
        List<CompletableFuture<Void>> answers = new ArrayList<>();
        for (int n = 0; n < 20; n++) {
            answers.add(consumer.acknowledgeAsync(next(consumer)));
        }
        for (CompletableFuture<Void> answer : answers) {
            answer.get(WAIT_S, TimeUnit.SECONDS);
        }
        consumer.close();
        nothing(subscribe(topic, SubscriptionType.Shared));
    }

    private static void partitions(String topic) throws Exception {
        rest("PUT", "persistent/public/default/" + topic + "/partitions", "4");
        same(4, client.getPartitionsForTopic(topic).get().size());
        Consumer<byte[]> consumer = subscribe(topic, SubscriptionType.Failover);
        Producer<byte[]> producer = client.newProducer().topic(topic).create();
        for (int n = 0; n < 40; n++) {
            producer.newMessage().key("k" + n % 8).value(bytes(n)).send();
        }
        Map<String, Integer> last = new HashMap<>();
        Set<Integer> used = new TreeSet<>();
        for (int n = 0; n < 40; n++) {
            Message<byte[]> message = next(consumer);
            check(last.getOrDefault(message.getKey(), -1) < number(message), "order of " + message.getKey());
            last.put(message.getKey(), number(message));
            used.add(((MessageIdAdv) message.getMessageId()).getPartitionIndex());
            consumer.acknowledge(message);
        }
        check(used.size() > 1, "several partitions are used");
        consumer.unsubscribe();
    }

    public static class Person {
        public String name;
        public int age;
    }

    public static class PersonWithTown {
        public String name;
        public int age;
        public String town;
    }

    public static class Misfit {
        public int name;
        public int age;
    }

    private static void schemas(String topic) throws Exception {
        for (boolean avro : new boolean[] {false, true}) {
            String name = topic + (avro ? "-avro" : "-json");
            Schema<Person> person = avro ? Schema.AVRO(Person.class) : Schema.JSON(Person.class);
            Schema<PersonWithTown> town =
                    avro ? Schema.AVRO(PersonWithTown.class) : Schema.JSON(PersonWithTown.class);
            Schema<Misfit> misfit = avro ? Schema.AVRO(Misfit.class) : Schema.JSON(Misfit.class);
            Consumer<Person> consumer = client.newConsumer(person).topic(name).subscriptionName("s").subscribe();
            Consumer<GenericRecord> generic = client.newConsumer(Schema.AUTO_CONSUME()).topic(name)
                    .subscriptionName("generic").subscribe();
            Person first = new Person();
            first.name = "a";
            first.age = 1;
            client.newProducer(person).topic(name).create().send(first);
            PersonWithTown second = new PersonWithTown();
            second.name = "b";
            second.town = "c";
            client.newProducer(town).topic(name).create().send(second);
            same("a", next(consumer).getValue().name);
            same("b", next(consumer).getValue().name);
            same("a", next(generic).getValue().getField("name").toString());
            same("c", next(generic).getValue().getField("town").toString());
            refused(() -> client.newProducer(misfit).topic(name).create());
            refused(() -> client.newConsumer(misfit).topic(name).subscriptionName("x").subscribe());
            refused(() -> client.newProducer(Schema.STRING).topic(name).create());
            client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(name).create().send(town.encode(second));
            same("b", next(consumer).getValue().name);
        }
    }

    private static void keyValues(String topic) throws Exception {
        Schema<KeyValue<String, Person>> schema =
                Schema.KeyValue(Schema.STRING, Schema.JSON(Person.class), KeyValueEncodingType.SEPARATED);
        Consumer<KeyValue<String, Person>> consumer =
                client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
        Person person = new Person();
        person.name = "a";
        client.newProducer(schema).topic(topic).create().send(new KeyValue<>("key", person));
        Message<KeyValue<String, Person>> message = next(consumer);
        same("key", message.getValue().getKey());
        same("a", message.getValue().getValue().name);
    }

    private static void tableViews(String topic) throws Exception {
        Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).create();
        for (int n = 0; n < 10; n++) {
            producer.newMessage().key("k" + n % 3).value("v" + n).send();
        }
        // By its full name: with a short one this client does not wait for what is there already.
        TableView<String> view =
                client.newTableView(Schema.STRING).topic("persistent://public/default/" + topic).create();
        same(3, view.size());
        same("v9", view.get("k0"));
        producer.newMessage().key("k0").value("new").send();
        until(() -> "new".equals(view.get("k0")));
        view.close();
    }

    private static void patterns(String topic) throws Exception {
        Pattern pattern = Pattern.compile("public/default/" + topic + "-.*");
        client.newProducer().topic(topic + "-early").create().send(bytes(1));
        Consumer<byte[]> consumer = client.newConsumer().topicsPattern(pattern).subscriptionName("s")
                .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        same(1, number(next(consumer)));
        client.newProducer().topic(topic + "-late").create().send(bytes(2));
        same(2, number(next(consumer)));
        consumer.close();
    }

    private static void deadLetters(String topic) throws Exception {
        Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(topic + "-dead")
                        .initialSubscriptionName("init").build())
                .subscribe();
        fill(topic, 1, false);
        for (int n = 0; n < 3; n++) {
            Message<byte[]> message = next(consumer);
            same(n, message.getRedeliveryCount());
            consumer.negativeAcknowledge(message);
        }
        Consumer<byte[]> dead = client.newConsumer().topic(topic + "-dead").subscriptionName("init").subscribe();
        same(0, number(next(dead)));
        consumer.close();
    }

    private static void retryLetters(String topic) throws Exception {
        Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").enableRetry(true)
                .subscriptionType(SubscriptionType.Shared)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(3).build()).subscribe();
        fill(topic, 1, false);
        consumer.reconsumeLater(next(consumer), 200, TimeUnit.MILLISECONDS);
        Message<byte[]> again = next(consumer);
        same("1", again.getProperty("RECONSUMETIMES"));
        consumer.acknowledge(again);
        consumer.close();
    }

    private static void failover(String topic) throws Exception {
        LinkedBlockingQueue<String> events = new LinkedBlockingQueue<>();
        Consumer<byte[]> first = listening(topic, "b", 1, events);
        same("b active", events.poll(WAIT_S, TimeUnit.SECONDS));
        Consumer<byte[]> second = listening(topic, "a", 0, events);
        Set<String> told = new TreeSet<>();
        told.add(events.poll(WAIT_S, TimeUnit.SECONDS));
        told.add(events.poll(WAIT_S, TimeUnit.SECONDS));
        same(Set.of("a active", "b inactive"), told);
        fill(topic, 1, false);
        same(0, number(next(second)));
        second.close();
        same("b active", events.poll(WAIT_S, TimeUnit.SECONDS));
        same(0, number(next(first)));
        first.close();
    }

    private static Consumer<byte[]> listening(
            String topic, String name, int priority, LinkedBlockingQueue<String> events) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(SubscriptionType.Failover)
                .consumerName(name).priorityLevel(priority).consumerEventListener(new ConsumerEventListener() {
                    @Override
                    public void becameActive(Consumer<?> consumer, int partition) {
                        events.add(name + " active");
                    }

                    @Override
                    public void becameInactive(Consumer<?> consumer, int partition) {
                        events.add(name + " inactive");
                    }
                }).subscribe();
    }

    private static void accessModes(String topic) throws Exception {
        Producer<byte[]> first = producer(topic, ProducerAccessMode.Exclusive);
        refused(() -> producer(topic, ProducerAccessMode.Exclusive));
        refused(() -> producer(topic, ProducerAccessMode.Shared));
        CompletableFuture<Producer<byte[]>> waiting = client.newProducer().topic(topic)
                .accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        first.send(bytes(0));
        check(!waiting.isDone(), "it waits");
        first.close();
        Producer<byte[]> second = waiting.get(WAIT_S, TimeUnit.SECONDS);
        second.send(bytes(1));
        Producer<byte[]> third = producer(topic, ProducerAccessMode.ExclusiveWithFencing);
        refused(() -> second.send(bytes(9)));
        third.send(bytes(2));
        same(range(0, 3), read(client.newReader().topic(topic).startMessageId(MessageId.earliest).create()));
    }

    private static Producer<byte[]> producer(String topic, ProducerAccessMode mode) throws PulsarClientException {
        return client.newProducer().topic(topic).accessMode(mode).create();
    }

    private static void deduplication(String topic) throws Exception {
        rest("PUT", "namespaces/public/java-dedup", null);
        rest("POST", "namespaces/public/java-dedup/deduplication", "true");
        String name = "persistent://public/java-dedup/" + topic;
        for (boolean batched : new boolean[] {false, true}) {
            String one = name + batched;
            for (int round = 0; round < 2; round++) {
                Producer<byte[]> producer = client.newProducer().topic(one).producerName("p")
                        .enableBatching(batched).batchingMaxPublishDelay(1, TimeUnit.SECONDS)
                        .sendTimeout(0, TimeUnit.SECONDS).create();
                same(round == 0 ? -1L : 9L, producer.getLastSequenceId());
                List<CompletableFuture<MessageId>> sent = new ArrayList<>();
                for (int n = 0; n < 10; n++) {
                    sent.add(producer.newMessage().sequenceId(n).value(bytes(n)).sendAsync());
                }
                producer.flush();
                for (CompletableFuture<MessageId> answer : sent) {
                    answer.get(WAIT_S, TimeUnit.SECONDS);
                }
                producer.close();
            }
            same(range(0, 10), read(client.newReader().topic(one).startMessageId(MessageId.earliest).create()));
        }
    }

    private static void delays(String topic) throws Exception {
        Consumer<byte[]> consumer = subscribe(topic, SubscriptionType.Shared);
        Producer<byte[]> producer = client.newProducer().topic(topic).create();
        producer.newMessage().deliverAfter(1200, TimeUnit.MILLISECONDS).value(bytes(2)).send();
        producer.newMessage().deliverAfter(600, TimeUnit.MILLISECONDS).value(bytes(1)).send();
        producer.send(bytes(0));
        for (int n = 0; n < 3; n++) {
            same(n, number(next(consumer)));
        }
        consumer.close();
    }

    private static void endOfTopic(String topic) throws Exception {
        Consumer<byte[]> consumer = subscribe(topic, SubscriptionType.Exclusive);
        Producer<byte[]> producer = client.newProducer().topic(topic).create();
        producer.send(bytes(0));
        rest("POST", "persistent/public/default/" + topic + "/terminate", "");
        refused(() -> producer.send(bytes(1)));
        consumer.acknowledge(next(consumer));
        until(consumer::hasReachedEndOfTopic);
        refused(() -> client.newProducer().topic(topic).create());
    }

    private static void unload(String topic) throws Exception {
        Consumer<byte[]> consumer = subscribe(topic, SubscriptionType.Exclusive);
        Producer<byte[]> producer = client.newProducer().topic(topic).create();
        for (int n = 0; n < 10; n++) {
            producer.send(bytes(n));
            if (n == 4) {
                rest("PUT", "persistent/public/default/" + topic + "/unload", "");
            }
        }
        Set<Integer> got = new TreeSet<>();
        while (got.size() < 10) {
            got.add(number(next(consumer)));
        }
        consumer.close();
    }

    private static void transactions(String topic) throws Exception {
        refused(() -> {
            try (PulsarClient other = PulsarClient.builder().serviceUrl(serviceUrl).enableTransaction(true).build()) {
                other.newTransaction().withTransactionTimeout(5, TimeUnit.SECONDS).build()
                        .get(WAIT_S, TimeUnit.SECONDS);
            }
        });
    }

    // -- words

    private static Consumer<byte[]> subscribe(String topic, SubscriptionType kind) throws Exception {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(kind)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    private static List<MessageId> fill(String topic, int count, boolean batched) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(batched)
                .batchingMaxPublishDelay(10, TimeUnit.SECONDS).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int n = 0; n < count; n++) {
                sent.add(producer.sendAsync(bytes(n)));
            }
            producer.flush();
            List<MessageId> ids = new ArrayList<>();
            for (CompletableFuture<MessageId> id : sent) {
                ids.add(id.get(WAIT_S, TimeUnit.SECONDS));
            }
            return ids;
        }
    }

    private static <T> Message<T> next(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
        check(message != null, "a message comes");
        return message;
    }

    private static void nothing(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(300, TimeUnit.MILLISECONDS);
        check(message == null, "nothing comes");
    }

    private static List<Integer> read(Reader<byte[]> reader) throws Exception {
        List<Integer> numbers = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            numbers.add(number(reader.readNext(WAIT_S, TimeUnit.SECONDS)));
        }
        reader.close();
        return numbers;
    }

    private static void rest(String method, String path, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(adminUrl + "/admin/v2/" + path))
                .timeout(Duration.ofSeconds(WAIT_S)).header("Content-Type", "application/json")
                .method(method, body == null || body.isEmpty() ? HttpRequest.BodyPublishers.noBody()
                        : HttpRequest.BodyPublishers.ofString(body))
                .build();
        HttpClient http = HttpClient.newBuilder().followRedirects(HttpClient.Redirect.NORMAL).build();
        HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        check(answer.statusCode() < 300, method + " " + path + ": " + answer.statusCode() + " " + answer.body());
    }

    interface Action {
        void run() throws Exception;
    }

    /** Fails unless the broker refuses in time: an answer, not a hang. */
    private static void refused(Action action) throws Exception {
        try {
            action.run();
        } catch (PulsarClientException.TimeoutException | TimeoutException error) {
            throw new AssertionError("it hangs instead of refusing", error);
        } catch (PulsarClientException | ExecutionException error) {
            return;
        }
        throw new AssertionError("it is not refused");
    }

    private static void until(BooleanSupplier met) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
        while (!met.getAsBoolean()) {
            check(System.nanoTime() < deadline, "met in time");
            Thread.sleep(10);
        }
    }

    private static byte[] bytes(int number) {
        return Integer.toString(number).getBytes();
    }

    private static int number(Message<byte[]> message) {
        return Integer.parseInt(new String(message.getValue()));
    }

    private static List<Integer> range(int start, int end) {
        List<Integer> numbers = new ArrayList<>();
        for (int n = start; n < end; n++) {
            numbers.add(n);
        }
        return numbers;
    }

    private static void same(Object expected, Object found) {
        check(expected.equals(found), "expected " + expected + ", found " + found);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
