package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.until;

import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.apache.pulsar.client.admin.GrantTopicPermissionOptions;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.admin.RevokeTopicPermissionOptions;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.impl.auth.AuthenticationBasic;
import org.apache.pulsar.common.policies.data.AuthAction;
import org.apache.pulsar.common.policies.data.SubscriptionAuthMode;
import org.apache.pulsar.common.policies.data.TenantInfo;

/**
 * Claims about a broker that wants tokens or passwords, and grants rights. Arguments: service URL, admin URL, the secret
 * of tokens in base64, and a user with a password. `admin` is a super user; a token that has expired is asked for
 * again within a second.
 */
public final class SecurityClaims {
    private static final String TENANT = "guarded";
    private final String serviceUrl;
    private final String adminUrl;
    private final byte[] secret;
    private final String user;
    private final String password;
    private final String space;
    private PulsarAdmin admin;

    private SecurityClaims(String[] arguments) {
        serviceUrl = arguments[0];
        adminUrl = arguments[1];
        secret = Base64.getDecoder().decode(arguments[2]);
        user = arguments[3];
        password = arguments[4];
        space = TENANT + "/n" + System.nanoTime();
    }

    public static void main(String[] arguments) throws Exception {
        System.exit(new SecurityClaims(arguments).run());
    }

    private int run() throws Exception {
        admin = admin(token("admin", 0));
        admin.tenants().createTenant(TENANT, TenantInfo.builder()
                .adminRoles(Set.of("boss")).allowedClusters(Set.copyOf(admin.clusters().getClusters())).build());
        admin.namespaces().createNamespace(space);
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("grants on a namespace come and go", this::namespaceGrants);
        claims.put("grants on topics come and go", this::topicGrants);
        claims.put("grants on several topics are one call", this::manyTopics);
        claims.put("subscriptions are kept for roles", this::subscriptionGrants);
        claims.put("subscriptions start with the role if that is wanted", this::prefixes);
        claims.put("who may produce may not consume", this::produceOnly);
        claims.put("an admin of the tenant grants and others do not", this::tenantAdmin);
        claims.put("a user with a password is a role", this::basic);
        claims.put("a token that expires is renewed on the way", this::renewed);
        claims.put("a token that is not renewed ends the connection", this::notRenewed);
        claims.put("nobody gets in without a token", this::nobody);
        int failed = 0;
        for (Map.Entry<String, Claim> claim : claims.entrySet()) {
            try {
                claim.getValue().check("persistent://" + space + "/t" + System.nanoTime());
                System.out.println("ok " + claim.getKey());
            } catch (Throwable error) {
                failed++;
                System.out.println("FAILED " + claim.getKey() + ": " + error);
                error.printStackTrace();
            }
        }
        admin.close();
        return failed == 0 ? 0 : 1;
    }

    // -- who

    private String token(String role, int lastsSeconds) {
        try {
            String claims = lastsSeconds == 0
                    ? "{\"sub\":\"" + role + "\"}"
                    : "{\"sub\":\"" + role + "\",\"exp\":" + (System.currentTimeMillis() / 1000 + lastsSeconds) + "}";
            Base64.Encoder encoder = Base64.getUrlEncoder().withoutPadding();
            String signed = encoder.encodeToString("{\"alg\":\"HS256\"}".getBytes(StandardCharsets.UTF_8))
                    + "." + encoder.encodeToString(claims.getBytes(StandardCharsets.UTF_8));
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(secret, "HmacSHA256"));
            return signed + "." + encoder.encodeToString(mac.doFinal(signed.getBytes(StandardCharsets.UTF_8)));
        } catch (java.security.GeneralSecurityException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private PulsarAdmin admin(String token) throws Exception {
        return PulsarAdmin.builder().serviceHttpUrl(adminUrl).authentication(AuthenticationFactory.token(token)).build();
    }

    private PulsarClient client(Authentication authentication) throws Exception {
        return PulsarClient.builder().serviceUrl(serviceUrl).authentication(authentication)
                .operationTimeout(5, TimeUnit.SECONDS).build();
    }

    private PulsarClient client(String role) throws Exception {
        return client(AuthenticationFactory.token(token(role, 0)));
    }

    private static void refused(Class<? extends Exception> kind, Callable<?> call) throws Exception {
        try {
            call.call();
        } catch (Exception error) {
            check(kind.isInstance(error), "refused with " + error + ", not with " + kind.getSimpleName());
            return;
        }
        throw new AssertionError("it was allowed");
    }

    // -- grants

    private void namespaceGrants(String topic) throws Exception {
        Set<AuthAction> both = Set.of(AuthAction.produce, AuthAction.consume);
        admin.namespaces().grantPermissionOnNamespace(space, "one", both);
        admin.namespaces().grantPermissionOnNamespace(space, "two", Set.of(AuthAction.values()));
        same(Map.of("one", both, "two", Set.of(AuthAction.values())), admin.namespaces().getPermissions(space));
        admin.namespaces().revokePermissionsOnNamespace(space, "one");
        admin.namespaces().revokePermissionsOnNamespace(space, "two");
        same(Map.of(), admin.namespaces().getPermissions(space));
    }

    private void topicGrants(String topic) throws Exception {
        admin.topics().createPartitionedTopic(topic, 2);
        admin.topics().grantPermission(topic, "one", Set.of(AuthAction.consume));
        same(Map.of("one", Set.of(AuthAction.consume)), admin.topics().getPermissions(topic));
        same(Map.of("one", Set.of(AuthAction.consume)), admin.topics().getPermissions(topic + "-partition-1"));
        try (PulsarClient one = client("one")) {
            one.newConsumer().topic(topic).subscriptionName("s").subscribe().close();
            refused(PulsarClientException.AuthorizationException.class, () -> one.newProducer().topic(topic).create());
        }
        admin.topics().revokePermissions(topic, "one");
        same(Map.of(), admin.topics().getPermissions(topic));
    }

    private void manyTopics(String topic) throws Exception {
        admin.topics().createNonPartitionedTopic(topic);
        admin.topics().createNonPartitionedTopic(topic + "b");
        Set<AuthAction> produce = Set.of(AuthAction.produce);
        admin.namespaces().grantPermissionOnTopics(List.of(
                GrantTopicPermissionOptions.builder().topic(topic).role("one").actions(produce).build(),
                GrantTopicPermissionOptions.builder().topic(topic + "b").role("two").actions(produce).build()));
        same(Map.of("two", produce), admin.topics().getPermissions(topic + "b"));
        admin.namespaces().revokePermissionOnTopics(List.of(
                RevokeTopicPermissionOptions.builder().topic(topic).role("one").build(),
                RevokeTopicPermissionOptions.builder().topic(topic + "b").role("two").build()));
        same(Map.of(), admin.topics().getPermissions(topic));
    }

    private void subscriptionGrants(String topic) throws Exception {
        admin.namespaces().grantPermissionOnNamespace(space, "one", Set.of(AuthAction.consume));
        admin.namespaces().grantPermissionOnSubscription(space, "kept", Set.of("two"));
        same(Map.of("kept", Set.of("two")), admin.namespaces().getPermissionOnSubscription(space));
        try (PulsarClient one = client("one")) {
            refused(PulsarClientException.AuthorizationException.class,
                    () -> one.newConsumer().topic(topic).subscriptionName("kept").subscribe());
            one.newConsumer().topic(topic).subscriptionName("open").subscribe().close();
        }
        admin.namespaces().revokePermissionOnSubscription(space, "kept", "two");
        same(Map.of(), admin.namespaces().getPermissionOnSubscription(space));
        admin.namespaces().revokePermissionsOnNamespace(space, "one");
    }

    private void prefixes(String topic) throws Exception {
        admin.namespaces().grantPermissionOnNamespace(space, "one", Set.of(AuthAction.consume));
        admin.namespaces().setSubscriptionAuthMode(space, SubscriptionAuthMode.Prefix);
        same(SubscriptionAuthMode.Prefix, admin.namespaces().getSubscriptionAuthMode(space));
        try (PulsarClient one = client("one")) {
            refused(PulsarClientException.AuthorizationException.class,
                    () -> one.newConsumer().topic(topic).subscriptionName("s").subscribe());
            one.newConsumer().topic(topic).subscriptionName("one-s").subscribe().close();
        }
        admin.namespaces().setSubscriptionAuthMode(space, SubscriptionAuthMode.None);
        admin.namespaces().revokePermissionsOnNamespace(space, "one");
    }

    // -- rights

    private void produceOnly(String topic) throws Exception {
        admin.namespaces().grantPermissionOnNamespace(space, "writer", Set.of(AuthAction.produce));
        admin.namespaces().grantPermissionOnNamespace(space, "reader", Set.of(AuthAction.consume));
        try (PulsarClient writer = client("writer"); PulsarClient reader = client("reader");
                Consumer<byte[]> consumer = reader.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = writer.newProducer().topic(topic).create()) {
            producer.send("hello".getBytes(StandardCharsets.UTF_8));
            same("hello", new String(consumer.receive(10, TimeUnit.SECONDS).getData(), StandardCharsets.UTF_8));
            refused(PulsarClientException.AuthorizationException.class,
                    () -> writer.newConsumer().topic(topic).subscriptionName("s2").subscribe());
            refused(PulsarClientException.AuthorizationException.class,
                    () -> reader.newProducer().topic(topic).create());
        }
    }

    private void tenantAdmin(String topic) throws Exception {
        try (PulsarAdmin boss = admin(token("boss", 0)); PulsarAdmin other = admin(token("other", 0))) {
            boss.namespaces().grantPermissionOnNamespace(space, "one", Set.of(AuthAction.consume));
            boss.namespaces().revokePermissionsOnNamespace(space, "one");
            boss.topics().createNonPartitionedTopic(topic);
            refused(PulsarAdminException.NotAuthorizedException.class, () -> boss.tenants().getTenants());
            refused(PulsarAdminException.NotAuthorizedException.class, () -> other.topics().getStats(topic));
            refused(PulsarAdminException.NotAuthorizedException.class, () -> {
                other.namespaces().grantPermissionOnNamespace(space, "other", Set.of(AuthAction.consume));
                return null;
            });
        }
    }

    private void basic(String topic) throws Exception {
        admin.namespaces().grantPermissionOnNamespace(space, user, Set.of(AuthAction.produce));
        AuthenticationBasic right = new AuthenticationBasic();
        right.configure(Map.of("userId", user, "password", password));
        try (PulsarClient known = client(right)) {
            known.newProducer().topic(topic).create().close();
            refused(PulsarClientException.AuthorizationException.class,
                    () -> known.newConsumer().topic(topic).subscriptionName("s").subscribe());
        }
        try (PulsarAdmin known = PulsarAdmin.builder().serviceHttpUrl(adminUrl).authentication(right).build()) {
            check(!known.namespaces().getTopics(space).isEmpty(), "no topics are listed");
        }
        AuthenticationBasic wrong = new AuthenticationBasic();
        wrong.configure(Map.of("userId", user, "password", password + "!"));
        try (PulsarClient unknown = client(wrong)) {
            refused(PulsarClientException.class, () -> unknown.newProducer().topic(topic).create());
        }
    }

    private void renewed(String topic) throws Exception {
        AtomicInteger shown = new AtomicInteger();
        Authentication authentication = AuthenticationFactory.token(() -> {
            shown.incrementAndGet();
            return token("admin", 2);
        });
        try (PulsarClient renewing = client(authentication);
                Producer<byte[]> producer = renewing.newProducer().topic(topic).create()) {
            int before = shown.get();
            long end = System.currentTimeMillis() + 15_000;
            while (shown.get() < before + 2) {
                check(System.currentTimeMillis() < end, "no newer token was asked for");
                producer.send(new byte[] {1});
            }
            check(producer.isConnected(), "the producer is not connected");
            same(0L, producer.getStats().getTotalSendFailed());
        }
    }

    private void notRenewed(String topic) throws Exception {
        try (PulsarClient expiring = client(AuthenticationFactory.token(token("admin", 2)));
                Producer<byte[]> producer = expiring.newProducer().topic(topic)
                        .sendTimeout(2, TimeUnit.SECONDS).create()) {
            until("the connection is ended", () -> !producer.isConnected());
            refused(PulsarClientException.class, () -> producer.send(new byte[] {1}));
        }
    }

    private void nobody(String topic) throws Exception {
        try (PulsarClient nobody = PulsarClient.builder().serviceUrl(serviceUrl)
                .operationTimeout(2, TimeUnit.SECONDS).build()) {
            refused(PulsarClientException.class, () -> nobody.newProducer().topic(topic).create());
        }
        try (PulsarAdmin nobody = PulsarAdmin.builder().serviceHttpUrl(adminUrl).build()) {
            refused(PulsarAdminException.NotAuthorizedException.class, () -> nobody.clusters().getClusters());
        }
        try (PulsarAdmin expired = admin(token("admin", -10))) {
            refused(PulsarAdminException.NotAuthorizedException.class, () -> expired.clusters().getClusters());
        }
    }
}
