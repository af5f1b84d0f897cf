package anabranch.interop;

import static anabranch.interop.Words.check;
import static anabranch.interop.Words.same;
import static anabranch.interop.Words.status;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.Topics;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.common.policies.data.RetentionPolicies;

/**
 * What Pulsar's admin client has for classic topics, on a scalable one: topic://public/default/verbs, with the
 * subscription s and six messages, m0 to m5, in several segments. Arguments: service URL, admin URL.
 */
public final class ScalableVerbClaims {
    private static final String TOPIC = "topic://public/default/verbs";

    private ScalableVerbClaims() {
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build()) {
            messages(admin.topics());
            policies(admin);
            cursors(admin.topics());
            System.out.println("ok");
        } catch (Throwable error) {
            System.out.println("FAILED " + error);
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void messages(Topics topics) throws Exception {
        same(List.of("s"), topics.getSubscriptions(TOPIC));
        same(List.of("m0", "m1", "m2", "m3", "m4", "m5"), peeked(topics, 9));
        same("m5", text(topics.examineMessage(TOPIC, "latest", 1)));
        same("m1", text(topics.examineMessage(TOPIC, "earliest", 2)));
    }

    private static void policies(PulsarAdmin admin) throws Exception {
        admin.topicPolicies().setRetention(TOPIC, new RetentionPolicies(60, 10));
        same(new RetentionPolicies(60, 10), admin.topicPolicies().getRetention(TOPIC));
        admin.topicPolicies().setMessageTTL(TOPIC, 90);
        same(90, admin.topicPolicies().getMessageTTL(TOPIC));
        admin.topicPolicies().removeMessageTTL(TOPIC);
        status(405, () -> admin.topicPolicies().setCompactionThreshold(TOPIC, 1000));
    }

    private static void cursors(Topics topics) throws Exception {
        topics.skipMessages(TOPIC, "s", 2);
        same(List.of("m2", "m3", "m4", "m5"), peeked(topics, 9));
        same(4L, topics.analyzeSubscriptionBacklog(TOPIC, "s", Optional.empty()).getMessages());
        topics.resetCursor(TOPIC, "s", 0);
        same(6, peeked(topics, 9).size());
        topics.expireMessages(TOPIC, "s", 3600);
        topics.expireMessagesForAllSubscriptions(TOPIC, 3600);
        same(6, peeked(topics, 9).size());
        topics.skipAllMessages(TOPIC, "s");
        check(peeked(topics, 9).isEmpty(), "nothing is left");
        topics.truncate(TOPIC);
        status(404, () -> topics.examineMessage(TOPIC, "earliest", 1));
    }

    private static List<String> peeked(Topics topics, int count) throws Exception {
        List<String> found = new ArrayList<>();
        for (Message<byte[]> message : topics.peekMessages(TOPIC, "s", count)) {
            found.add(text(message));
        }
        return found;
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }
}
