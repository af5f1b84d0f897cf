package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.status;

import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.GetStatsOptions;
import org.apache.pulsar.client.admin.ListNamespaceTopicsOptions;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.Mode;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.TopicPolicies;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.naming.TopicDomain;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.BacklogQuota.BacklogQuotaType;
import org.apache.pulsar.common.policies.data.ClusterData;
import org.apache.pulsar.common.policies.data.PersistencePolicies;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.policies.data.TopicStats;

/**
 * What operators do more rarely with Pulsar's admin client. Arguments: service URL, admin URL and, if not all claims
 * are to be checked, a part of the names of those that are.
 */
public final class UpkeepClaims {
    private final PulsarClient client;
    private final PulsarAdmin admin;
    private final Namespaces namespaces;
    private final Topics topics;
    private final TopicPolicies policies;
    private final String cluster;

    private UpkeepClaims(PulsarClient client, PulsarAdmin admin) throws Exception {
        this.client = client;
        this.admin = admin;
        this.namespaces = admin.namespaces();
        this.topics = admin.topics();
        this.policies = admin.topicPolicies();
        this.cluster = admin.clusters().getClusters().get(0);
    }

    public static void main(String[] arguments) throws Exception {
        int failed = 0;
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0])
                .operationTimeout(3, TimeUnit.SECONDS).build();
                PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build()) {
            UpkeepClaims upkeep = new UpkeepClaims(client, admin);
            if (!admin.tenants().getTenants().contains("upkeep")) {
                admin.tenants().createTenant("upkeep",
                        TenantInfo.builder().allowedClusters(Set.of(upkeep.cluster)).build());
            }
            for (Map.Entry<String, Claim> claim : upkeep.claims().entrySet()) {
                if (arguments.length > 2 && !claim.getKey().contains(arguments[2])) {
                    continue;
                }
                try {
                    String namespace = "upkeep/ns-" + System.nanoTime();
                    admin.namespaces().createNamespace(namespace, 4);
                    claim.getValue().check(namespace);
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
        claims.put("tenants and clusters are changed", this::tenants);
        claims.put("policies are shown with what they leave out", this::shownPolicies);
        claims.put("what is in force is told", this::inForce);
        claims.put("topics are listed", this::lists);
        claims.put("topics are deleted when nobody is connected", this::deleting);
        claims.put("partitions are missed, sealed and described", this::partitions);
        claims.put("stats leave out what is not asked for", this::stats);
        claims.put("messages are found by time", this::byTime);
        claims.put("offloading is answered", this::offloading);
        claims.put("bundles are emptied", this::bundles);
        claims.put("services that are not there say so", this::services);
        return claims;
    }

    private void tenants(String ns) throws Exception {
        String tenant = "t-" + System.nanoTime();
        status(412, () -> admin.tenants().createTenant(tenant, TenantInfo.builder().build()));
        admin.tenants().createTenant(tenant, TenantInfo.builder().allowedClusters(Set.of(cluster)).build());
        admin.tenants().updateTenant(tenant,
                TenantInfo.builder().adminRoles(Set.of("boss")).allowedClusters(Set.of(cluster)).build());
        same(Set.of("boss"), admin.tenants().getTenantInfo(tenant).getAdminRoles());
        namespaces.createNamespace(tenant + "/n", Set.of(cluster));
        status(409, () -> admin.tenants().deleteTenant(tenant));
        status(403, () -> namespaces.createNamespace(tenant + "/m", Set.of("mars")));
        namespaces.deleteNamespace(tenant + "/n");
        admin.tenants().deleteTenant(tenant);
        status(400, () -> admin.clusters().createCluster("odd", ClusterData.builder().serviceUrl("odd").build()));
        status(404, () -> admin.clusters().getNamespaceIsolationPolicies(cluster));
        status(405, () -> admin.clusters().updatePeerClusterNames(cluster, new LinkedHashSet<>(Set.of("west"))));
    }

    private void shownPolicies(String ns) throws Exception {
        namespaces.setBacklogQuota(ns, BacklogQuota.builder().limitTime(60)
                .retentionPolicy(BacklogQuota.RetentionPolicy.consumer_backlog_eviction).build(),
                BacklogQuotaType.message_age);
        BacklogQuota found = namespaces.getBacklogQuotaMap(ns).get(BacklogQuotaType.message_age);
        same(60, found.getLimitTime());
        same(found, namespaces.getPolicies(ns).backlog_quota_map.get(BacklogQuotaType.message_age));
        same(Set.of(cluster), namespaces.getPolicies(ns).replication_clusters);
        same(true, namespaces.getIsAllowAutoUpdateSchema(ns));
        same(-1L, namespaces.getOffloadThreshold(ns));
        namespaces.setDeduplicationSnapshotInterval(ns, 7);
        same(7, namespaces.getDeduplicationSnapshotInterval(ns));
        namespaces.removeDeduplicationSnapshotInterval(ns);
        same(null, namespaces.getDeduplicationSnapshotInterval(ns));
        namespaces.setCompactionThreshold(ns, 1000);
        same(1000L, namespaces.getCompactionThreshold(ns));
        namespaces.removeCompactionThreshold(ns);
        same(null, namespaces.getCompactionThreshold(ns));
        status(412, () -> namespaces.setMaxProducersPerTopic(ns, -1));
        status(400, () -> namespaces.setPersistence(ns, new PersistencePolicies(1, 2, 1, 0.0)));
    }

    private void inForce(String ns) throws Exception {
        String topic = ns + "/t";
        topics.createNonPartitionedTopic(topic);
        same(null, policies.getRetention(topic));
        same(new RetentionPolicies(7 * 24 * 60, -1), policies.getRetention(topic, true));
        same(0, policies.getMessageTTL(topic, true));
        same(50_000, policies.getMaxUnackedMessagesOnConsumer(topic, true));
        same(false, policies.getDeduplicationStatus(topic, true));
        check(policies.getBacklogQuotaMap(topic, true).containsKey(BacklogQuotaType.destination_storage), "quotas");
        check(policies.getDispatchRate(topic, true) != null, "a rate that is none");
        namespaces.setCompactionThreshold(ns, 1000);
        same(1000L, policies.getCompactionThreshold(topic, true));
        policies.setCompactionThreshold(topic, 2000);
        same(2000L, policies.getCompactionThreshold(topic));
        policies.removeCompactionThreshold(topic);
        same(null, policies.getCompactionThreshold(topic));
    }

    private void lists(String ns) throws Exception {
        String topic = "persistent://" + ns + "/t";
        String fleeting = "non-persistent://" + ns + "/n";
        topics.createNonPartitionedTopic(topic);
        topics.createNonPartitionedTopic(fleeting);
        same(List.of(topic), topics.getList(ns, TopicDomain.persistent));
        same(List.of(fleeting), topics.getList(ns, TopicDomain.non_persistent));
        same(List.of(topic, fleeting), namespaces.getTopics(ns,
                ListNamespaceTopicsOptions.builder().mode(Mode.ALL).includeSystemTopic(false).build()));
        same(List.of(fleeting), topics.getListInBundle(ns, admin.lookups().getBundleRange(fleeting)));
        check(topics.getStats(fleeting).getSubscriptions().isEmpty(), "stats of what keeps nothing");
        status(412, () -> topics.createNonPartitionedTopic(topic + "-partition-0"));
    }

    private void deleting(String ns) throws Exception {
        String topic = ns + "/t";
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
            status(412, () -> topics.delete(topic));
        }
        topics.delete(topic);
        status(404, () -> topics.getStats(topic));
        String parted = ns + "/p";
        topics.createPartitionedTopic(parted, 2);
        topics.createSubscription(parted, "s", MessageId.latest);
        status(409, () -> topics.delete(parted));
        topics.deletePartitionedTopic(parted);
        status(404, () -> topics.deletePartitionedTopic(parted));
    }

    private void partitions(String ns) throws Exception {
        String parted = "persistent://" + ns + "/p";
        status(404, () -> topics.createMissedPartitions(parted));
        topics.createPartitionedTopic(parted, 2);
        topics.delete(parted + "-partition-1", true);
        topics.createMissedPartitions(parted);
        same(2, topics.getList(ns).size());
        check(topics.getInternalInfo(parted).contains(parted + "-partition-1"), "info of each");
        same(Set.of(0, 1), topics.terminatePartitionedTopic(parted).keySet());
        try (Producer<byte[]> producer = client.newProducer().topic(parted).create()) {
            throw new AssertionError("a producer was admitted");
        } catch (PulsarClientException.TopicTerminatedException expected) {
            // As it should be.
        }
    }

    private void stats(String ns) throws Exception {
        String topic = ns + "/t";
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create();
                Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Key_Shared).subscribe()) {
            producer.send(new byte[1]);
            TopicStats all = topics.getStats(topic, new GetStatsOptions(true, true, true, false, false));
            same(1, all.getPublishers().size());
            check(all.getPublishers().get(0).getConnectedSince().endsWith("Z"), "a time that people can read");
            check(all.getEarliestMsgPublishTimeInBacklogs() > 0, "the oldest of the backlog");
            same(1, all.getSubscriptions().get("s").getConsumers().size());
            TopicStats less = topics.getStats(topic, new GetStatsOptions(false, false, false, true, true));
            same(0, less.getPublishers().size());
            same(0, less.getSubscriptions().get("s").getConsumers().size());
            same(true, topics.getInternalStats(topic).cursors.get("s").active);
        }
    }

    private void byTime(String ns) throws Exception {
        String topic = ns + "/t";
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            MessageId first = producer.send(new byte[1]);
            producer.send(new byte[1]);
            same(first.toString(), topics.getMessageIdByTimestamp(topic, 0).toString());
        }
    }

    private void offloading(String ns) throws Exception {
        topics.createNonPartitionedTopic(ns + "/t");
        same(LongRunningProcessStatus.Status.NOT_RUN, topics.offloadStatus(ns + "/t").getStatus());
        status(405, () -> topics.triggerOffload(ns + "/t", MessageId.latest));
        status(404, () -> topics.offloadStatus(ns + "/nothing"));
    }

    private void bundles(String ns) throws Exception {
        String topic = "persistent://" + ns + "/t";
        topics.createNonPartitionedTopic(topic);
        String bundle = admin.lookups().getBundleRange(topic);
        status(409, () -> namespaces.deleteNamespaceBundle(ns, bundle));
        namespaces.deleteNamespaceBundle(ns, bundle, true);
        same(List.of(), topics.getList(ns));
        status(412, () -> namespaces.unloadNamespaceBundle(ns, "0x00000000_0xffffffff"));
    }

    private void services(String ns) throws Exception {
        status(409, () -> admin.functions().getFunctions("upkeep", "n"));
        status(409, () -> admin.sources().listSources("upkeep", "n"));
        status(409, () -> admin.sinks().listSinks("upkeep", "n"));
        try {
            admin.transactions().listTransactionCoordinators();
            throw new AssertionError("there are coordinators");
        } catch (PulsarAdminException refusal) {
            same(503, refusal.getStatusCode());
        }
        same(List.of(), admin.resourcegroups().getResourceGroups());
        same(0, admin.bookies().getBookies().getBookies().size());
    }
}
