package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * Claims about schemas over their whole life and about policies that change under connected clients, checked with
 * Pulsar's Java clients. Arguments: service URL, admin URL and, if not all claims are to be checked, a part of the
 * names of those that are.
 */
public final class PolicyClaims {
    private static PulsarClient client;
    private static PulsarAdmin admin;

    /** A schema's first version. */
    public static final class One {
        public int a;
    }

    /** May follow and be followed: what is new may be missing. */
    public static final class Two {
        public int a;
        public String b;
    }

    /** May not follow: its field has another type. */
    public static final class Other {
        public String a;
    }

    private PolicyClaims() {
    }

    public static void main(String[] arguments) throws Exception {
        client = PulsarClient.builder().serviceUrl(arguments[0]).operationTimeout(20, TimeUnit.SECONDS).build();
        admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build();
        int failed = 0;
        for (Map.Entry<String, Claim> claim : claims().entrySet()) {
            String name = claim.getKey();
            if (arguments.length > 2 && !name.contains(arguments[2])) {
                continue;
            }
            // A namespace each: its policies are of no concern to the other claims.
            String namespace = "public/" + name.replace(' ', '-') + "-" + System.nanoTime();
            admin.namespaces().createNamespace(namespace);
            try {
                claim.getValue().check(namespace);
                System.out.println("ok " + name);
            } catch (Throwable error) {
                failed++;
                System.out.println("FAILED " + name + ": " + error);
                error.printStackTrace();
            }
        }
        admin.close();
        client.close();
        System.exit(failed == 0 ? 0 : 1);
    }

    private static Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("primitive schemas have their names", PolicyClaims::primitives);
        claims.put("pairs of any types travel", PolicyClaims::pairs);
        claims.put("a consumer of anything is in nobodys way", PolicyClaims::anything);
        claims.put("deleted versions are never used again", PolicyClaims::deleted);
        claims.put("every strategy is kept to", PolicyClaims::strategies);
        claims.put("schemas may be required and fixed", PolicyClaims::fixed);
        claims.put("held producers go on once there is room", PolicyClaims::held);
        claims.put("refused producers hear why", PolicyClaims::refusedByQuota);
        claims.put("limits of non persistent topics", PolicyClaims::unstored);
        return claims;
    }

    private static void primitives(String namespace) throws Exception {
        Map<SchemaType, Schema<?>> schemas = new LinkedHashMap<>();
        schemas.put(SchemaType.BOOLEAN, Schema.BOOL);
        schemas.put(SchemaType.INT8, Schema.INT8);
        schemas.put(SchemaType.LOCAL_DATE_TIME, Schema.LOCAL_DATE_TIME);
        schemas.put(SchemaType.INSTANT, Schema.INSTANT);
        schemas.put(SchemaType.STRING, Schema.STRING);
        for (Map.Entry<SchemaType, Schema<?>> one : schemas.entrySet()) {
            String topic = "persistent://" + namespace + "/" + one.getKey();
            client.newProducer(one.getValue()).topic(topic).create().close();
            same(one.getKey(), admin.schemas().getSchemaInfo(topic).getType());
            // Made by an operator, it is the same one.
            admin.schemas().createSchema(topic, one.getValue().getSchemaInfo());
            same(1, admin.schemas().getAllSchemas(topic).size());
        }
    }

    private static <K, V> void pair(String topic, Schema<K> key, Schema<V> value, K one, V other) throws Exception {
        for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
            String name = topic + "-" + encoding;
            Schema<KeyValue<K, V>> schema = Schema.KeyValue(key, value, encoding);
            try (Consumer<KeyValue<K, V>> consumer =
                            client.newConsumer(schema).topic(name).subscriptionName("s").subscribe();
                    Producer<KeyValue<K, V>> producer = client.newProducer(schema).topic(name).create()) {
                producer.send(new KeyValue<>(one, other));
                KeyValue<K, V> got = consumer.receive(10, TimeUnit.SECONDS).getValue();
                same(one, got.getKey());
                same(other, got.getValue());
            }
            same(SchemaType.KEY_VALUE, admin.schemas().getSchemaInfo(name).getType());
        }
    }

    private static void pairs(String namespace) throws Exception {
        String topic = "persistent://" + namespace + "/t";
        pair(topic + 1, Schema.STRING, Schema.BOOL, "k", true);
        pair(topic + 2, Schema.INT64, Schema.INT32, 7L, 8);
        pair(topic + 3, Schema.BOOL, Schema.DOUBLE, false, 1.5);
        Schema<KeyValue<byte[], byte[]>> bytes = Schema.KV_BYTES();
        client.newProducer(bytes).topic(topic + 4).create().close();
        // Without definitions only the types of their parts tell pairs apart.
        Schema<KeyValue<Long, Long>> others = Schema.KeyValue(Schema.INT64, Schema.INT64);
        refused(() -> client.newProducer(others).topic(topic + "2-INLINE").create());
    }

    private static void anything(String namespace) throws Exception {
        String topic = "persistent://" + namespace + "/t";
        try (Consumer<GenericRecord> any =
                        client.newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("any").subscribe();
                Consumer<One> typed =
                        client.newConsumer(Schema.JSON(One.class)).topic(topic).subscriptionName("typed").subscribe();
                Producer<byte[]> producer = client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create()) {
            producer.send("{\"a\":7}".getBytes());
            same(7, typed.receive(10, TimeUnit.SECONDS).getValue().a);
            same(7, ((Number) any.receive(10, TimeUnit.SECONDS).getValue().getField("a")).intValue());
        }
    }

    private static void deleted(String namespace) throws Exception {
        String topic = "persistent://" + namespace + "/t";
        client.newProducer(Schema.JSON(One.class)).topic(topic).create().close();
        same(0L, admin.schemas().getSchemaInfoWithVersion(topic).getVersion());
        admin.schemas().deleteSchema(topic);
        client.newProducer(Schema.JSON(Other.class)).topic(topic).create().close();
        same(2L, admin.schemas().getSchemaInfoWithVersion(topic).getVersion());
        same(1, admin.schemas().getAllSchemas(topic).size());
    }

    private static void strategies(String namespace) throws Exception {
        Map<SchemaCompatibilityStrategy, String> may = new LinkedHashMap<>();
        // Whether Two may follow One, One follow Two, and Other follow either.
        may.put(SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE, "yes yes yes");
        may.put(SchemaCompatibilityStrategy.ALWAYS_INCOMPATIBLE, "no no no");
        may.put(SchemaCompatibilityStrategy.BACKWARD, "yes yes no");
        may.put(SchemaCompatibilityStrategy.FORWARD, "yes yes no");
        may.put(SchemaCompatibilityStrategy.FULL, "yes yes no");
        may.put(SchemaCompatibilityStrategy.BACKWARD_TRANSITIVE, "yes yes no");
        may.put(SchemaCompatibilityStrategy.FORWARD_TRANSITIVE, "yes yes no");
        may.put(SchemaCompatibilityStrategy.FULL_TRANSITIVE, "yes yes no");
        for (Map.Entry<SchemaCompatibilityStrategy, String> one : may.entrySet()) {
            admin.namespaces().setSchemaCompatibilityStrategy(namespace, one.getKey());
            String topic = "persistent://" + namespace + "/" + one.getKey();
            String found = follows(topic + 1, Schema.AVRO(One.class), Schema.AVRO(Two.class)) + " "
                    + follows(topic + 2, Schema.AVRO(Two.class), Schema.AVRO(One.class)) + " "
                    + follows(topic + 3, Schema.AVRO(One.class), Schema.AVRO(Other.class));
            same(one.getKey() + " " + one.getValue(), one.getKey() + " " + found);
        }
    }

    private static String follows(String topic, Schema<?> before, Schema<?> after) throws Exception {
        client.newProducer(before).topic(topic).create().close();
        try {
            client.newProducer(after).topic(topic).create().close();
            return "yes";
        } catch (PulsarClientException.IncompatibleSchemaException refused) {
            return "no";
        }
    }

    private static void fixed(String namespace) throws Exception {
        String topic = "persistent://" + namespace + "/t";
        client.newProducer(Schema.JSON(One.class)).topic(topic).create().close();
        admin.namespaces().setSchemaValidationEnforced(namespace, true);
        refused(() -> client.newProducer().topic(topic).create());
        admin.namespaces().setSchemaValidationEnforced(namespace, false);
        client.newProducer().topic(topic).create().close();
        admin.namespaces().setIsAllowAutoUpdateSchema(namespace, false, null);
        refused(() -> client.newProducer(Schema.JSON(Two.class)).topic(topic).create());
        client.newProducer(Schema.JSON(One.class)).topic(topic).create().close();
        // An operator still may.
        admin.schemas().createSchema(topic, Schema.JSON(Two.class).getSchemaInfo());
        client.newProducer(Schema.JSON(Two.class)).topic(topic).create().close();
    }

    private static void refused(Words.Action attempt) throws Exception {
        try {
            attempt.run();
        } catch (PulsarClientException.IncompatibleSchemaException expected) {
            return;
        }
        throw new AssertionError("not refused");
    }

    private static Producer<byte[]> filled(String namespace, BacklogQuota.RetentionPolicy action) throws Exception {
        String topic = "persistent://" + namespace + "/t";
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createSubscription(topic, "s", MessageId.earliest);
        admin.namespaces().setBacklogQuota(namespace,
                BacklogQuota.builder().limitSize(10_000).retentionPolicy(action).build());
        Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                .sendTimeout(30, TimeUnit.SECONDS).create();
        for (int n = 0; n < 12; n++) {
            producer.send(new byte[1000]);
        }
        admin.brokers().backlogQuotaCheck();
        return producer;
    }

    private static void held(String namespace) throws Exception {
        Producer<byte[]> producer = filled(namespace, BacklogQuota.RetentionPolicy.producer_request_hold);
        var sent = producer.sendAsync("waits".getBytes());
        try (Consumer<byte[]> consumer = client.newConsumer().topic("persistent://" + namespace + "/t")
                .subscriptionName("s").subscribe()) {
            for (int n = 0; n < 12; n++) {
                consumer.acknowledge(consumer.receive(10, TimeUnit.SECONDS));
            }
            sent.get(30, TimeUnit.SECONDS);
            same("waits", new String(consumer.receive(10, TimeUnit.SECONDS).getData()));
        }
    }

    private static void refusedByQuota(String namespace) throws Exception {
        Producer<byte[]> producer = filled(namespace, BacklogQuota.RetentionPolicy.producer_exception);
        try {
            producer.send("too much".getBytes());
        } catch (PulsarClientException.ProducerBlockedQuotaExceededException
                | PulsarClientException.ProducerBlockedQuotaExceededError expected) {
            check(expected.getMessage().contains("quota"), expected.getMessage());
            try (Consumer<byte[]> consumer = client.newConsumer().topic("persistent://" + namespace + "/t")
                    .subscriptionName("s").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .subscribe()) {
                Message<byte[]> message;
                while ((message = consumer.receive(1, TimeUnit.SECONDS)) != null) {
                    consumer.acknowledge(message);
                }
            }
            client.newProducer().topic("persistent://" + namespace + "/t").create().close();
            return;
        }
        throw new AssertionError("not refused");
    }

    private static void unstored(String namespace) throws Exception {
        String topic = "non-persistent://" + namespace + "/t";
        admin.namespaces().setMaxProducersPerTopic(namespace, 1);
        admin.namespaces().setMaxConsumersPerTopic(namespace, 1);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create();
                Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).subscribe()) {
            try {
                client.newProducer().topic(topic).create();
                throw new AssertionError("two producers");
            } catch (PulsarClientException.ProducerBusyException expected) {
                check(expected.getMessage().contains("max producers"), expected.getMessage());
            }
            try {
                client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(SubscriptionType.Shared)
                        .subscribe();
                throw new AssertionError("two consumers");
            } catch (PulsarClientException.ConsumerBusyException expected) {
                check(expected.getMessage().contains("max consumers"), expected.getMessage());
            }
            admin.namespaces().removeMaxProducersPerTopic(namespace);
            try (Producer<byte[]> second = client.newProducer().topic(topic).create()) {
                second.send("both".getBytes());
            }
            same("both", new String(consumer.receive(10, TimeUnit.SECONDS).getData()));
        }
    }
}
