package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.status;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.TopicPolicies;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.policies.data.AutoSubscriptionCreationOverride;
import org.apache.pulsar.common.policies.data.AutoTopicCreationOverride;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.BacklogQuota.BacklogQuotaType;
import org.apache.pulsar.common.policies.data.ClusterData;
import org.apache.pulsar.common.policies.data.DelayedDeliveryPolicies;
import org.apache.pulsar.common.policies.data.DispatchRate;
import org.apache.pulsar.common.policies.data.InactiveTopicDeleteMode;
import org.apache.pulsar.common.policies.data.InactiveTopicPolicies;
import org.apache.pulsar.common.policies.data.PersistencePolicies;
import org.apache.pulsar.common.policies.data.PublishRate;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;
import org.apache.pulsar.common.stats.AnalyzeSubscriptionBacklogResult;

/**
 * What operators do with Pulsar's admin client, on regular topics. Arguments: service URL, admin URL and, if not all
 * claims are to be checked, a part of the names of those that are.
 */
public final class OperatorClaims {
    private final PulsarClient client;
    private final PulsarAdmin admin;
    private final Namespaces namespaces;
    private final Topics topics;
    private final String cluster;

    private OperatorClaims(PulsarClient client, PulsarAdmin admin) throws Exception {
        this.client = client;
        this.admin = admin;
        this.namespaces = admin.namespaces();
        this.topics = admin.topics();
        this.cluster = admin.clusters().getClusters().get(0);
    }

    public static void main(String[] arguments) throws Exception {
        int failed = 0;
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0])
                .operationTimeout(3, TimeUnit.SECONDS).build();
                PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build()) {
            OperatorClaims operator = new OperatorClaims(client, admin);
            for (Map.Entry<String, Claim> claim : operator.claims().entrySet()) {
                if (arguments.length > 2 && !claim.getKey().contains(arguments[2])) {
                    continue;
                }
                try {
                    claim.getValue().check(operator.fresh());
                    System.out.println("ok " + claim.getKey());
                } catch (Throwable error) {
                    failed++;
                    System.out.println("FAILED " + claim.getKey() + ": " + error);
                    error.printStackTrace();
                }
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }

    private Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("clusters and tenants", this::clustersAndTenants);
        claims.put("namespaces come and go", this::namespacesComeAndGo);
        claims.put("namespace policies are kept", this::namespacePolicies);
        claims.put("namespace limits are kept", this::namespaceLimits);
        claims.put("topic policies are over the namespaces", this::topicPolicies);
        claims.put("what is not served is refused", this::refused);
        claims.put("topics and their partitions", this::topicsAndPartitions);
        claims.put("what a topic holds", this::storage);
        claims.put("subscriptions are moved", this::subscriptions);
        claims.put("backlogs are analyzed and expire to a place", this::backlogs);
        claims.put("a full backlog holds or refuses producers", this::quotas);
        claims.put("a full backlog is evicted", this::eviction);
        claims.put("limits bind clients", this::limits);
        claims.put("schemas and their versions", this::schemas);
        claims.put("compatibility follows the strategy", this::compatibility);
        claims.put("deduplication begins where producers are", this::deduplication);
        claims.put("brokers and dynamic settings", this::brokers);
        claims.put("bundles", this::bundles);
        claims.put("lookups", this::lookups);
        return claims;
    }

    /** A namespace of its own for each claim. */
    private String fresh() throws Exception {
        if (!admin.tenants().getTenants().contains("operator")) {
            admin.tenants().createTenant("operator", TenantInfo.builder().allowedClusters(Set.of(cluster)).build());
        }
        String namespace = "operator/ns-" + System.nanoTime();
        namespaces.createNamespace(namespace, 4);
        return namespace;
    }

    private void clustersAndTenants(String namespace) throws Exception {
        String other = "other-" + System.nanoTime();
        admin.clusters().createCluster(other, ClusterData.builder().serviceUrl("http://other:8080").build());
        same("http://other:8080", admin.clusters().getCluster(other).getServiceUrl());
        admin.clusters().updateCluster(other, ClusterData.builder().serviceUrl("http://far:8080").build());
        same("http://far:8080", admin.clusters().getCluster(other).getServiceUrl());
        check(admin.clusters().getClusters().contains(other), "listed");
        admin.clusters().deleteCluster(other);
        status(404, () -> admin.clusters().getCluster(other));
        same(true, admin.clusters().getFailureDomains(cluster).isEmpty());
        String tenant = "t-" + System.nanoTime();
        TenantInfo info = TenantInfo.builder().adminRoles(Set.of("boss")).allowedClusters(Set.of(cluster)).build();
        admin.tenants().createTenant(tenant, info);
        status(409, () -> admin.tenants().createTenant(tenant, info));
        same(Set.of("boss"), admin.tenants().getTenantInfo(tenant).getAdminRoles());
        admin.tenants().deleteTenant(tenant);
        status(404, () -> admin.tenants().getTenantInfo(tenant));
    }

    private void namespacesComeAndGo(String namespace) throws Exception {
        check(namespaces.getNamespaces("operator").contains(namespace), "listed");
        same(4, namespaces.getBundles(namespace).getNumBundles());
        status(409, () -> namespaces.createNamespace(namespace));
        topics.createNonPartitionedTopic(namespace + "/t");
        same(List.of("persistent://" + namespace + "/t"), namespaces.getTopics(namespace));
        status(409, () -> namespaces.deleteNamespace(namespace));
        namespaces.setProperty(namespace, "team", "data");
        namespaces.setProperties(namespace, Map.of("tier", "gold"));
        same(Map.of("team", "data", "tier", "gold"), namespaces.getProperties(namespace));
        same("data", namespaces.getProperty(namespace, "team"));
        same("data", namespaces.removeProperty(namespace, "team"));
        namespaces.clearProperties(namespace);
        same(Map.of(), namespaces.getProperties(namespace));
        namespaces.unload(namespace);
        namespaces.deleteNamespace(namespace, true);
        status(404, () -> namespaces.getPolicies(namespace));
    }

    private void namespacePolicies(String ns) throws Exception {
        same(null, namespaces.getRetention(ns));
        namespaces.setRetention(ns, new RetentionPolicies(60, 512));
        same(new RetentionPolicies(60, 512), namespaces.getRetention(ns));
        namespaces.removeRetention(ns);
        same(null, namespaces.getNamespaceMessageTTL(ns));
        namespaces.setNamespaceMessageTTL(ns, 100);
        same(100, namespaces.getNamespaceMessageTTL(ns));
        namespaces.removeNamespaceMessageTTL(ns);
        BacklogQuota quota = BacklogQuota.builder().limitSize(1 << 20).limitTime(60)
                .retentionPolicy(BacklogQuota.RetentionPolicy.consumer_backlog_eviction).build();
        namespaces.setBacklogQuota(ns, quota, BacklogQuotaType.destination_storage);
        BacklogQuota found = namespaces.getBacklogQuotaMap(ns).get(BacklogQuotaType.destination_storage);
        same(quota.getLimitSize(), found.getLimitSize());
        same(quota.getPolicy(), found.getPolicy());
        namespaces.removeBacklogQuota(ns, BacklogQuotaType.destination_storage);
        same(Map.of(), namespaces.getBacklogQuotaMap(ns));
        namespaces.setDeduplicationStatus(ns, true);
        same(true, namespaces.getDeduplicationStatus(ns));
        namespaces.removeDeduplicationStatus(ns);
        same(null, namespaces.getDeduplicationStatus(ns));
        namespaces.setAutoTopicCreation(ns, AutoTopicCreationOverride.builder().allowAutoTopicCreation(true)
                .topicType("partitioned").defaultNumPartitions(3).build());
        same(3, namespaces.getAutoTopicCreation(ns).getDefaultNumPartitions());
        namespaces.removeAutoTopicCreation(ns);
        namespaces.setAutoSubscriptionCreation(ns,
                AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(false).build());
        same(false, namespaces.getAutoSubscriptionCreation(ns).isAllowAutoSubscriptionCreation());
        namespaces.removeAutoSubscriptionCreation(ns);
        namespaces.setSchemaCompatibilityStrategy(ns, SchemaCompatibilityStrategy.FORWARD_TRANSITIVE);
        same(SchemaCompatibilityStrategy.FORWARD_TRANSITIVE, namespaces.getSchemaCompatibilityStrategy(ns));
        namespaces.setSchemaValidationEnforced(ns, true);
        same(true, namespaces.getSchemaValidationEnforced(ns));
        namespaces.setIsAllowAutoUpdateSchema(ns, false, null);
        same(false, namespaces.getIsAllowAutoUpdateSchema(ns));
        namespaces.setPersistence(ns, new PersistencePolicies(1, 1, 1, 0.0));
        same(1, namespaces.getPersistence(ns).getBookkeeperEnsemble());
        namespaces.removePersistence(ns);
        namespaces.setDelayedDeliveryMessages(ns,
                DelayedDeliveryPolicies.builder().active(false).tickTime(100).build());
        same(false, namespaces.getDelayedDelivery(ns).isActive());
        namespaces.removeDelayedDeliveryMessages(ns);
        namespaces.setInactiveTopicPolicies(ns,
                new InactiveTopicPolicies(InactiveTopicDeleteMode.delete_when_subscriptions_caught_up, 90, true));
        same(90, namespaces.getInactiveTopicPolicies(ns).getMaxInactiveDurationSeconds());
        namespaces.removeInactiveTopicPolicies(ns);
        namespaces.setSubscriptionTypesEnabled(ns, Set.of(SubscriptionType.Shared));
        same(Set.of(SubscriptionType.Shared), namespaces.getSubscriptionTypesEnabled(ns));
        namespaces.removeSubscriptionTypesEnabled(ns);
        namespaces.setEncryptionRequiredStatus(ns, true);
        same(true, namespaces.getEncryptionRequiredStatus(ns));
        namespaces.setPublishRate(ns, new PublishRate(1000, 1 << 20));
        same(1000, namespaces.getPublishRate(ns).publishThrottlingRateInMsg);
        namespaces.removePublishRate(ns);
        DispatchRate rate = DispatchRate.builder().dispatchThrottlingRateInMsg(500).ratePeriodInSecond(2).build();
        namespaces.setDispatchRate(ns, rate);
        same(rate, namespaces.getDispatchRate(ns));
        namespaces.removeDispatchRate(ns);
        namespaces.setSubscriptionDispatchRate(ns, rate);
        same(rate, namespaces.getSubscriptionDispatchRate(ns));
        namespaces.removeSubscriptionDispatchRate(ns);
        status(400, () -> namespaces.setRetention(ns, new RetentionPolicies(0, 5)));
    }

    private void namespaceLimits(String ns) throws Exception {
        namespaces.setMaxProducersPerTopic(ns, 7);
        same(7, namespaces.getMaxProducersPerTopic(ns));
        namespaces.removeMaxProducersPerTopic(ns);
        same(null, namespaces.getMaxProducersPerTopic(ns));
        namespaces.setMaxConsumersPerTopic(ns, 7);
        same(7, namespaces.getMaxConsumersPerTopic(ns));
        namespaces.setMaxConsumersPerSubscription(ns, 7);
        same(7, namespaces.getMaxConsumersPerSubscription(ns));
        namespaces.setMaxSubscriptionsPerTopic(ns, 7);
        same(7, namespaces.getMaxSubscriptionsPerTopic(ns));
        namespaces.setMaxUnackedMessagesPerConsumer(ns, 7);
        same(7, namespaces.getMaxUnackedMessagesPerConsumer(ns));
        namespaces.setMaxUnackedMessagesPerSubscription(ns, 7);
        same(7, namespaces.getMaxUnackedMessagesPerSubscription(ns));
        namespaces.setMaxTopicsPerNamespace(ns, 1);
        same(1, namespaces.getMaxTopicsPerNamespace(ns));
        namespaces.setSubscriptionExpirationTime(ns, 30);
        same(30, namespaces.getSubscriptionExpirationTime(ns));
        topics.createNonPartitionedTopic(ns + "/one");
        status(412, () -> topics.createNonPartitionedTopic(ns + "/two"));
    }

    private void topicPolicies(String ns) throws Exception {
        String topic = ns + "/t";
        TopicPolicies policies = admin.topicPolicies();
        status(404, () -> policies.setMaxProducers(topic, 1));
        topics.createPartitionedTopic(topic, 2);
        namespaces.setNamespaceMessageTTL(ns, 100);
        same(null, policies.getMessageTTL(topic));
        same(100, policies.getMessageTTL(topic, true));
        policies.setMessageTTL(topic, 50);
        same(50, policies.getMessageTTL(topic));
        policies.removeMessageTTL(topic);
        policies.setRetention(topic, new RetentionPolicies(30, 10));
        same(new RetentionPolicies(30, 10), policies.getRetention(topic));
        policies.setDeduplicationStatus(topic, true);
        same(true, policies.getDeduplicationStatus(topic));
        policies.setMaxProducers(topic, 3);
        same(3, policies.getMaxProducers(topic));
        policies.setMaxConsumers(topic, 3);
        same(3, policies.getMaxConsumers(topic));
        policies.setMaxUnackedMessagesOnConsumer(topic, 3);
        same(3, policies.getMaxUnackedMessagesOnConsumer(topic));
        policies.setMaxSubscriptionsPerTopic(topic, 3);
        same(3, policies.getMaxSubscriptionsPerTopic(topic));
        policies.setPublishRate(topic, new PublishRate(10, -1));
        same(10, policies.getPublishRate(topic).publishThrottlingRateInMsg);
        policies.setSubscriptionExpirationTime(topic, 5);
        same(5, policies.getSubscriptionExpirationTime(topic));
        policies.setSchemaCompatibilityStrategy(topic, SchemaCompatibilityStrategy.BACKWARD);
        same(SchemaCompatibilityStrategy.BACKWARD, policies.getSchemaCompatibilityStrategy(topic, false));
        policies.deleteTopicPolicies(topic);
        same(null, policies.getMaxProducers(topic));
        same(null, policies.getRetention(topic));
    }

    private void refused(String ns) throws Exception {
        topics.createNonPartitionedTopic(ns + "/t");
        status(405, () -> topics.triggerOffload(ns + "/t", MessageId.latest));
        status(405, () -> namespaces.setOffloadThreshold(ns, 10));
        status(403, () -> namespaces.setNamespaceReplicationClusters(ns, Set.of(cluster, "mars"), true));
        status(404, () -> topics.getStats(ns + "/nothing"));
        status(404, () -> topics.resetCursor(ns + "/t", "nobody", 0L));
    }

    private void topicsAndPartitions(String ns) throws Exception {
        String topic = "persistent://" + ns + "/a b+ü";
        topics.createNonPartitionedTopic(topic, Map.of("owner", "me"));
        status(409, () -> topics.createNonPartitionedTopic(topic));
        same("me", topics.getProperties(topic).get("owner"));
        topics.updateProperties(topic, Map.of("more", "yes"));
        topics.removeProperties(topic, "owner");
        same(Map.of("more", "yes"), topics.getProperties(topic));
        same(List.of(topic), topics.getList(ns));
        String parted = "persistent://" + ns + "/parted";
        topics.createPartitionedTopic(parted, 2);
        topics.createSubscription(parted, "s", MessageId.earliest);
        topics.updatePartitionedTopic(parted, 3);
        same(3, topics.getPartitionedTopicMetadata(parted).partitions);
        same(List.of(parted), topics.getPartitionedTopicList(ns));
        same(Set.of("s"), new TreeSet<>(topics.getSubscriptions(parted + "-partition-2")));
        send(parted, 6);
        same(6L, topics.getPartitionedStats(parted, true).getSubscriptions().get("s").getMsgBacklog());
        same(3, topics.getPartitionedInternalStats(parted).partitions.size());
        topics.unload(parted);
        topics.deletePartitionedTopic(parted, true);
        status(404, () -> topics.getPartitionedTopicMetadata(parted));
        topics.delete(topic, true);
        same(List.of(), topics.getList(ns));
    }

    private void storage(String ns) throws Exception {
        String topic = ns + "/t";
        topics.createSubscription(topic, "s", MessageId.earliest);
        MessageId last = send(topic, 5);
        same(last.toString(), topics.getLastMessageId(topic).toString());
        same(5L, topics.getInternalStats(topic).numberOfEntries);
        check(topics.getInternalInfo(topic).contains("ledgers"), "internal info");
        check(topics.getBacklogSizeByMessageId(topic, MessageId.earliest) > 0, "backlog size");
        List<Message<byte[]>> peeked = topics.peekMessages(topic, "s", 2);
        same("0", text(peeked.get(0)));
        same("1", text(peeked.get(1)));
        same("4", text(topics.examineMessage(topic, "latest", 1)));
        Message<byte[]> first = peeked.get(0);
        org.apache.pulsar.client.impl.MessageIdImpl id =
                (org.apache.pulsar.client.impl.MessageIdImpl) first.getMessageId();
        same("0", text(topics.getMessagesById(topic, id.getLedgerId(), id.getEntryId()).get(0)));
        topics.truncate(topic);
        same(0L, topics.getStats(topic).getSubscriptions().get("s").getMsgBacklog());
        same(0L, topics.getInternalStats(topic).numberOfEntries);
        topics.trimTopic(topic);
        send(topic, 1);
        topics.terminateTopic(topic);
        check(refusesProducer(topic) instanceof PulsarClientException.TopicTerminatedException, "terminated");
    }

    private void subscriptions(String ns) throws Exception {
        String topic = ns + "/t";
        topics.createSubscription(topic, "s", MessageId.earliest, false, Map.of("k", "v"));
        status(409, () -> topics.createSubscription(topic, "s", MessageId.earliest));
        same(Map.of("k", "v"), topics.getSubscriptionProperties(topic, "s"));
        topics.updateSubscriptionProperties(topic, "s", Map.of("k", "w"));
        same(Map.of("k", "w"), topics.getSubscriptionProperties(topic, "s"));
        MessageId last = send(topic, 5);
        topics.skipMessages(topic, "s", 2);
        same(3L, backlog(topic));
        topics.skipAllMessages(topic, "s");
        same(0L, backlog(topic));
        topics.resetCursor(topic, "s", last);
        same(1L, backlog(topic));
        topics.resetCursor(topic, "s", last, true);
        same(0L, backlog(topic));
        topics.resetCursor(topic, "s", 0L);
        same(5L, backlog(topic));
        topics.expireMessages(topic, "s", 3600);
        same(5L, backlog(topic));
        topics.expireMessagesForAllSubscriptions(topic, 3600);
        same(false, topics.getReplicatedSubscriptionStatus(topic, "s").values().iterator().next());
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
            status(412, () -> topics.deleteSubscription(topic, "s"));
        }
        topics.deleteSubscription(topic, "s");
        same(List.of(), topics.getSubscriptions(topic));
    }

    private void backlogs(String ns) throws Exception {
        String topic = ns + "/t";
        topics.createSubscription(topic, "s", MessageId.earliest);
        send(topic, 3);
        MessageId fourth = send(topic, 1);
        send(topic, 2);
        AnalyzeSubscriptionBacklogResult found = topics.analyzeSubscriptionBacklog(topic, "s", Optional.empty());
        same(6L, found.getEntries());
        same(6L, found.getMessages());
        check(!found.isAborted(), "looked at all");
        same(3L, topics.analyzeSubscriptionBacklog(topic, "s", Optional.of(fourth)).getEntries());
        topics.expireMessages(topic, "s", fourth, false);
        same(2L, backlog(topic));
        namespaces.clearNamespaceBacklog(ns);
        same(0L, backlog(topic));
        send(topic, 2);
        namespaces.clearNamespaceBacklogForSubscription(ns, "s");
        same(0L, backlog(topic));
        namespaces.unsubscribeNamespace(ns, "s");
        same(List.of(), topics.getSubscriptions(topic));
    }

    private void quotas(String ns) throws Exception {
        Map<BacklogQuota.RetentionPolicy, Class<? extends Exception>> actions = Map.of(
                BacklogQuota.RetentionPolicy.producer_request_hold,
                PulsarClientException.ProducerBlockedQuotaExceededError.class,
                BacklogQuota.RetentionPolicy.producer_exception,
                PulsarClientException.ProducerBlockedQuotaExceededException.class);
        for (Map.Entry<BacklogQuota.RetentionPolicy, Class<? extends Exception>> action : actions.entrySet()) {
            String topic = ns + "/" + action.getKey();
            topics.createSubscription(topic, "s", MessageId.earliest);
            send(topic, 20);
            namespaces.setBacklogQuota(ns, BacklogQuota.builder().limitSize(10).retentionPolicy(action.getKey())
                    .build(), BacklogQuotaType.destination_storage);
            admin.brokers().backlogQuotaCheck();
            Exception refusal = refusesProducer(topic);
            check(action.getValue().isInstance(refusal), action.getKey() + " brought " + refusal);
            topics.skipAllMessages(topic, "s");
            namespaces.removeBacklogQuota(ns, BacklogQuotaType.destination_storage);
            send(topic, 1);
        }
    }

    private void eviction(String ns) throws Exception {
        String topic = ns + "/t";
        topics.createSubscription(topic, "s", MessageId.earliest);
        admin.topicPolicies().setBacklogQuota(topic, BacklogQuota.builder().limitSize(500)
                .retentionPolicy(BacklogQuota.RetentionPolicy.consumer_backlog_eviction).build(),
                BacklogQuotaType.destination_storage);
        send(topic, 100);
        admin.brokers().backlogQuotaCheck();
        long left = backlog(topic);
        check(left > 0 && left < 20, "evicted to " + left);
        send(topic, 1);
        same(left + 1, backlog(topic));
    }

    private void limits(String ns) throws Exception {
        String topic = ns + "/t";
        topics.createNonPartitionedTopic(topic);
        admin.topicPolicies().setMaxProducers(topic, 1);
        try (Producer<byte[]> first = client.newProducer().topic(topic).create()) {
            check(refusesProducer(topic) instanceof PulsarClientException.ProducerBusyException, "one producer");
        }
        admin.topicPolicies().removeMaxProducers(topic);
        namespaces.setSubscriptionTypesEnabled(ns, Set.of(SubscriptionType.Shared));
        Exception refusal = refusesConsumer(topic, SubscriptionType.Exclusive);
        check(refusal instanceof PulsarClientException.NotAllowedException, "types: " + refusal);
        namespaces.setAutoSubscriptionCreation(ns,
                AutoSubscriptionCreationOverride.builder().allowAutoSubscriptionCreation(false).build());
        refusal = refusesConsumer(topic, SubscriptionType.Shared);
        check(refusal instanceof PulsarClientException.SubscriptionNotFoundException, "automatic: " + refusal);
    }

    private void schemas(String ns) throws Exception {
        String topic = ns + "/t";
        status(404, () -> admin.schemas().getSchemaInfo(topic));
        admin.schemas().createSchema(topic, avro("a"));
        namespaces.setSchemaCompatibilityStrategy(ns, SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE);
        admin.schemas().createSchema(topic, avro("a", "b"));
        same(2, admin.schemas().getAllSchemas(topic).size());
        same(1L, admin.schemas().getSchemaInfoWithVersion(topic).getVersion());
        same(SchemaType.AVRO, admin.schemas().getSchemaInfo(topic, 0).getType());
        same(0L, admin.schemas().getVersionBySchema(topic, avro("a")));
        same(2, admin.schemas().getSchemaMetadata(topic).index.size());
        admin.schemas().deleteSchema(topic);
        status(404, () -> admin.schemas().getSchemaInfo(topic));
    }

    private void compatibility(String ns) throws Exception {
        String topic = ns + "/t";
        admin.schemas().createSchema(topic, avro("a"));
        for (SchemaCompatibilityStrategy strategy : SchemaCompatibilityStrategy.values()) {
            namespaces.setSchemaCompatibilityStrategy(ns, strategy);
            // A field more, without a default: what was written before cannot be read with it.
            boolean expected = switch (strategy) {
                case ALWAYS_COMPATIBLE, FORWARD, FORWARD_TRANSITIVE -> true;
                default -> false;
            };
            same(expected, admin.schemas().testCompatibility(topic, avro("a", "b")).isCompatibility());
        }
        namespaces.setSchemaCompatibilityStrategy(ns, SchemaCompatibilityStrategy.BACKWARD);
        status(409, () -> admin.schemas().createSchema(topic, avro("a", "b")));
        try (Producer<String> refused = client.newProducer(Schema.STRING).topic(topic).create()) {
            throw new AssertionError("a text producer was admitted");
        } catch (PulsarClientException.IncompatibleSchemaException expected) {
            // As it should be.
        }
    }

    private void deduplication(String ns) throws Exception {
        String topic = ns + "/t";
        topics.createSubscription(topic, "s", MessageId.earliest);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).producerName("p").enableBatching(false)
                .create()) {
            for (long id = 0; id < 3; id++) {
                producer.newMessage().sequenceId(id).value(new byte[1]).send();
            }
        }
        namespaces.setDeduplicationStatus(ns, true);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).producerName("p").enableBatching(false)
                .create()) {
            same(2L, producer.getLastSequenceId());
            producer.newMessage().sequenceId(2).value(new byte[1]).send();
            producer.newMessage().sequenceId(3).value(new byte[1]).send();
        }
        same(4L, backlog(topic));
    }

    private void brokers(String ns) throws Exception {
        List<String> active = admin.brokers().getActiveBrokers(cluster);
        same(Lab.BROKERS, active.size());
        check(active.contains(admin.brokers().getLeaderBroker().getBrokerId()), "leader");
        admin.brokers().healthcheck();
        check(!admin.brokers().getVersion().isEmpty(), "version");
        check(admin.brokers().getRuntimeConfigurations().containsKey("maxMessageSize"), "runtime");
        check(admin.brokers().getInternalConfigurationData() != null, "internal");
        check(admin.brokers().getDynamicConfigurationNames().contains("maxProducersPerTopic"), "names");
        admin.brokers().updateDynamicConfiguration("maxProducersPerTopic", "1");
        same("1", admin.brokers().getAllDynamicConfigurations().get("maxProducersPerTopic"));
        try (Producer<byte[]> first = client.newProducer().topic(ns + "/t").create()) {
            check(refusesProducer(ns + "/t") instanceof PulsarClientException.ProducerBusyException, "acts at once");
        }
        admin.brokers().deleteDynamicConfiguration("maxProducersPerTopic");
        same(Map.of(), admin.brokers().getAllDynamicConfigurations());
        status(412, () -> admin.brokers().updateDynamicConfiguration("dataDir", "x"));
        status(412, () -> admin.brokers().updateDynamicConfiguration("maxProducersPerTopic", "many"));
        // Of the broker that is asked, which is any of several.
        check(Lab.BROKERS > 1 || admin.brokerStats().getTopics().contains(ns), "topics of the broker");
        check(admin.brokerStats().getMetrics().contains("brk_"), "metrics");
        check(admin.brokerStats().getLoadReport() != null, "load report");
    }

    private void bundles(String ns) throws Exception {
        String topic = "persistent://" + ns + "/t";
        topics.createSubscription(topic, "s", MessageId.earliest);
        send(topic, 2);
        String bundle = admin.lookups().getBundleRange(topic);
        check(namespaces.getTopicHashPositions(ns, bundle, null).getTopicHashPositions().containsKey(topic), "hash");
        namespaces.unloadNamespaceBundle(ns, bundle);
        namespaces.clearNamespaceBundleBacklog(ns, bundle);
        same(0L, backlog(topic));
        namespaces.splitNamespaceBundle(ns, bundle, true, null);
        same(5, namespaces.getBundles(ns).getNumBundles());
        status(412, () -> namespaces.unloadNamespaceBundle(ns, "0x00000000_0x12345678"));
    }

    private void lookups(String ns) throws Exception {
        topics.createNonPartitionedTopic(ns + "/t");
        check(admin.lookups().lookupTopic(ns + "/t").startsWith("pulsar://"), "lookup");
        topics.createPartitionedTopic(ns + "/p", 2);
        same(2, admin.lookups().lookupPartitionedTopic(ns + "/p").size());
    }

    // -- doing

    private MessageId send(String topic, int count) throws Exception {
        MessageId last = null;
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            for (int n = 0; n < count; n++) {
                last = producer.send(Integer.toString(n).getBytes(StandardCharsets.UTF_8));
            }
        }
        return last;
    }

    private long backlog(String topic) throws PulsarAdminException {
        return topics.getStats(topic).getSubscriptions().get("s").getMsgBacklog();
    }

    private Exception refusesProducer(String topic) {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            throw new AssertionError("a producer was admitted to " + topic);
        } catch (PulsarClientException refusal) {
            return refusal;
        }
    }

    private Exception refusesConsumer(String topic, SubscriptionType type) {
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("c")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscriptionType(type)
                .subscribe()) {
            throw new AssertionError("a consumer was admitted to " + topic);
        } catch (PulsarClientException refusal) {
            return refusal;
        }
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    private static SchemaInfo avro(String... fields) {
        StringBuilder text = new StringBuilder();
        for (String field : fields) {
            text.append(text.isEmpty() ? "" : ",").append("{\"name\":\"").append(field)
                    .append("\",\"type\":\"string\"}");
        }
        String definition = "{\"type\":\"record\",\"name\":\"R\",\"fields\":[" + text + "]}";
        return SchemaInfo.builder().name("t").type(SchemaType.AVRO)
                .schema(definition.getBytes(StandardCharsets.UTF_8)).properties(Map.of()).build();
    }
}
