package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.status;
import static anabranch.interop.Words.until;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.common.policies.data.AutoFailoverPolicyData;
import org.apache.pulsar.common.policies.data.AutoFailoverPolicyType;
import org.apache.pulsar.common.policies.data.BrokerAssignment;
import org.apache.pulsar.common.policies.data.FailureDomain;
import org.apache.pulsar.common.policies.data.NamespaceIsolationData;
import org.apache.pulsar.common.policies.data.TenantInfo;

/**
 * What operators do about the owners of bundles, on three brokers with the load balancer. Arguments: service URL, admin
 * URL.
 */
public final class BalancerClaims {
    private static final int BROKERS = 3;

    private final PulsarClient client;
    private final PulsarAdmin admin;
    private final Namespaces namespaces;
    private final String cluster;

    private BalancerClaims(PulsarClient client, PulsarAdmin admin) throws Exception {
        this.client = client;
        this.admin = admin;
        this.namespaces = admin.namespaces();
        this.cluster = admin.clusters().getClusters().get(0);
    }

    public static void main(String[] arguments) throws Exception {
        int failed = 0;
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0])
                .operationTimeout(30, TimeUnit.SECONDS).build();
                PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build()) {
            BalancerClaims balancer = new BalancerClaims(client, admin);
            for (Map.Entry<String, Claim> claim : balancer.claims().entrySet()) {
                try {
                    claim.getValue().check(balancer.fresh());
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
        claims.put("brokers and the leader are named", this::brokers);
        claims.put("a bundle is unloaded and assigned again", this::unload);
        claims.put("a bundle is given to a broker", this::transfer);
        claims.put("no bundle goes to where it cannot", this::refusedTransfers);
        claims.put("a bundle is split", this::split);
        claims.put("an isolation policy brings its bundles to its brokers", this::isolation);
        claims.put("namespaces of a group are kept apart", this::antiAffinity);
        claims.put("failure domains come and go", this::failureDomains);
        return claims;
    }

    /** A namespace of its own for each claim. */
    private String fresh() throws Exception {
        if (!admin.tenants().getTenants().contains("balancer")) {
            admin.tenants().createTenant("balancer", TenantInfo.builder().allowedClusters(Set.of(cluster)).build());
        }
        String namespace = "balancer/ns-" + System.nanoTime();
        namespaces.createNamespace(namespace, 4);
        return namespace;
    }

    private void brokers(String ns) throws Exception {
        List<String> active = admin.brokers().getActiveBrokers(cluster);
        same(BROKERS, active.size());
        same(new TreeSet<>(active), new TreeSet<>(admin.brokers().getActiveBrokers()));
        check(active.contains(admin.brokers().getLeaderBroker().getBrokerId()), "leader");
        status(404, () -> admin.brokers().getActiveBrokers("elsewhere"));
        String topic = ns + "/t";
        send(topic, "one");
        same(ns + "/" + admin.lookups().getBundleRange(topic), ownedAt(ownerOf(topic), ns).get(0));
    }

    private void unload(String ns) throws Exception {
        String topic = ns + "/t";
        String bundle = bundleWith(topic, "one");
        namespaces.unloadNamespaceBundle(ns, bundle);
        send(topic, "two");
        namespaces.unload(ns);
        admin.topics().unload(topic);
        same(List.of("one", "two"), receive(topic, 2));
        status(412, () -> namespaces.unloadNamespaceBundle(ns, "0x00000000_0x12345678"));
        status(412, () -> namespaces.unloadNamespaceBundle(ns, "nonsense"));
        status(404, () -> namespaces.unloadNamespaceBundle("balancer/none", bundle));
    }

    private void transfer(String ns) throws Exception {
        String topic = ns + "/t";
        String bundle = bundleWith(topic, "one");
        for (String broker : admin.brokers().getActiveBrokers(cluster)) {
            if (!broker.equals(ownerOf(topic))) {
                namespaces.unloadNamespaceBundle(ns, bundle, broker);
                same(broker, ownerOf(topic));
                send(topic, broker);
            }
        }
        // A prefix that names the protocol is left out, as in Pulsar.
        String other = otherThan(ownerOf(topic));
        namespaces.unloadNamespaceBundle(ns, bundle, "http://" + other);
        same(other, ownerOf(topic));
        check(receive(topic, 3).get(0).equals("one"), "in order");
    }

    private void refusedTransfers(String ns) throws Exception {
        String topic = ns + "/t";
        String bundle = bundleWith(topic, "one");
        String owner = ownerOf(topic);
        status(409, () -> namespaces.unloadNamespaceBundle(ns, bundle, "gone:8080"));
        // Pulsar answers 500 for the owner itself, which says that the broker is at fault.
        status(412, () -> namespaces.unloadNamespaceBundle(ns, bundle, owner));
        same(owner, ownerOf(topic));
    }

    private void split(String ns) throws Exception {
        String bundle = bundleWith(ns + "/t", "one");
        int before = namespaces.getBundles(ns).getNumBundles();
        namespaces.splitNamespaceBundle(ns, bundle, true, "range_equally_divide");
        same(before + 1, namespaces.getBundles(ns).getNumBundles());
        String part = admin.lookups().getBundleRange(ns + "/t");
        check(!part.equals(bundle), "the topic is in a part");
        namespaces.splitNamespaceBundle(ns, part, false, null);
        same(before + 2, namespaces.getBundles(ns).getNumBundles());
        String last = admin.lookups().getBundleRange(ns + "/t");
        status(412, () -> namespaces.splitNamespaceBundle(ns, bundle, false, null));
        status(412, () -> namespaces.splitNamespaceBundle(ns, last, false, "by_the_moon"));
        status(412, () -> namespaces.splitNamespaceBundle(ns, last, false, "specified_positions_divide"));
        // The bundle with the most topics, and the one with the most traffic.
        namespaces.splitNamespaceBundle(ns, "LARGEST", false, null);
        namespaces.splitNamespaceBundle(ns, "HOT", true, "range_equally_divide");
        same(before + 4, namespaces.getBundles(ns).getNumBundles());
        same(List.of("one"), receive(ns + "/t", 1));
    }

    private void isolation(String ns) throws Exception {
        String topic = ns + "/t";
        String bundle = bundleWith(topic, "one");
        String primary = otherThan(ownerOf(topic));
        String third = otherThan(primary);
        NamespaceIsolationData policy = NamespaceIsolationData.builder().namespaces(List.of(ns))
                .primary(List.of(primary)).secondary(List.of()).autoFailoverPolicy(AutoFailoverPolicyData.builder()
                        .policyType(AutoFailoverPolicyType.min_available)
                        .parameters(new TreeMap<>(Map.of("min_limit", "1", "usage_threshold", "100"))).build())
                .build();
        admin.clusters().createNamespaceIsolationPolicy(cluster, "own", policy);
        try {
            same(primary, ownerOf(topic));
            same(policy, admin.clusters().getNamespaceIsolationPolicy(cluster, "own"));
            same(Map.of("own", policy), admin.clusters().getNamespaceIsolationPolicies(cluster));
            same(true, admin.clusters().getBrokerWithNamespaceIsolationPolicy(cluster, primary).isPrimary());
            same(BROKERS, admin.clusters().getBrokersWithNamespaceIsolationPolicy(cluster).size());
            same(BrokerAssignment.primary, admin.brokers().getOwnedNamespaces(cluster, primary)
                    .get(ns + "/" + bundle).broker_assignment);
            status(412, () -> namespaces.unloadNamespaceBundle(ns, bundle, third));
            status(404, () -> admin.clusters().getNamespaceIsolationPolicy(cluster, "none"));
            status(412, () -> admin.clusters().createNamespaceIsolationPolicy("elsewhere", "own", policy));
        } finally {
            admin.clusters().deleteNamespaceIsolationPolicy(cluster, "own");
        }
        same(Map.of(), admin.clusters().getNamespaceIsolationPolicies(cluster));
        namespaces.unloadNamespaceBundle(ns, bundle, third);
        same(third, ownerOf(topic));
    }

    private void antiAffinity(String ns) throws Exception {
        String other = fresh();
        check(isBlank(namespaces.getNamespaceAntiAffinityGroup(ns)), "no group");
        for (String one : List.of(ns, other)) {
            namespaces.setNamespaceAntiAffinityGroup(one, "Pair");
            same("Pair", namespaces.getNamespaceAntiAffinityGroup(one));
        }
        same(new TreeSet<>(List.of(ns, other)),
                new TreeSet<>(namespaces.getAntiAffinityNamespaces("balancer", cluster, "pair")));
        same(List.of(), namespaces.getAntiAffinityNamespaces("balancer", cluster, "nothing"));
        status(412, () -> namespaces.setNamespaceAntiAffinityGroup(ns, " "));
        status(412, () -> namespaces.getAntiAffinityNamespaces("balancer", "elsewhere", "pair"));
        String first = bundleWith(ns + "/t", "one");
        String owner = ownerOf(ns + "/t");
        String second = bundleWith(other + "/t", "one");
        status(412, () -> namespaces.unloadNamespaceBundle(other, second, owner));
        for (String one : List.of(ns, other)) {
            namespaces.deleteNamespaceAntiAffinityGroup(one);
            check(isBlank(namespaces.getNamespaceAntiAffinityGroup(one)), "no group any more");
        }
        namespaces.unloadNamespaceBundle(other, second, owner);
        same(owner, ownerOf(other + "/t"));
        check(!first.isEmpty(), "both have an owner");
    }

    private void failureDomains(String ns) throws Exception {
        List<String> active = admin.brokers().getActiveBrokers(cluster);
        FailureDomain rack = FailureDomain.builder().brokers(Set.of(active.get(0), active.get(1))).build();
        admin.clusters().createFailureDomain(cluster, "rack", rack);
        same(rack.getBrokers(), admin.clusters().getFailureDomain(cluster, "rack").getBrokers());
        same(Set.of("rack"), admin.clusters().getFailureDomains(cluster).keySet());
        status(409, () -> admin.clusters().createFailureDomain(cluster, "other", rack));
        FailureDomain smaller = FailureDomain.builder().brokers(Set.of(active.get(0))).build();
        admin.clusters().updateFailureDomain(cluster, "rack", smaller);
        same(smaller.getBrokers(), admin.clusters().getFailureDomain(cluster, "rack").getBrokers());
        admin.clusters().deleteFailureDomain(cluster, "rack");
        status(404, () -> admin.clusters().getFailureDomain(cluster, "rack"));
        status(404, () -> admin.clusters().deleteFailureDomain(cluster, "rack"));
        status(412, () -> admin.clusters().getFailureDomain("elsewhere", "rack"));
        same(Map.of(), admin.clusters().getFailureDomains(cluster));
    }

    // -- doing

    /** The bundle of the topic, which has an owner once something was sent. */
    private String bundleWith(String topic, String text) throws Exception {
        send(topic, text);
        return admin.lookups().getBundleRange(topic);
    }

    private void send(String topic, String text) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            producer.send(text.getBytes(StandardCharsets.UTF_8));
        }
    }

    private List<String> receive(String topic, int count) throws Exception {
        List<String> found = new ArrayList<>();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            while (found.size() < count) {
                Message<byte[]> message = consumer.receive(Words.WAIT_S, TimeUnit.SECONDS);
                check(message != null, "received " + found);
                found.add(new String(message.getData(), StandardCharsets.UTF_8));
            }
        }
        return found;
    }

    /** The broker that serves the topic, by its name in the list of brokers. */
    private String ownerOf(String topic) throws Exception {
        String bundle = admin.lookups().getBundleRange(topic);
        String ns = topic.substring(0, topic.lastIndexOf('/'));
        String[] found = new String[1];
        until("the bundle has an owner", () -> {
            for (String broker : admin.brokers().getActiveBrokers(cluster)) {
                if (ownedAt(broker, ns).contains(ns + "/" + bundle)) {
                    found[0] = broker;
                }
            }
            return found[0] != null;
        });
        return found[0];
    }

    private List<String> ownedAt(String broker, String ns) throws PulsarAdminException {
        return admin.brokers().getOwnedNamespaces(cluster, broker).keySet().stream()
                .filter(one -> one.startsWith(ns + "/")).sorted().toList();
    }

    private String otherThan(String broker) throws PulsarAdminException {
        return admin.brokers().getActiveBrokers(cluster).stream().filter(one -> !one.equals(broker)).findFirst()
                .orElseThrow();
    }

    private static boolean isBlank(String text) {
        return text == null || text.isBlank();
    }
}
