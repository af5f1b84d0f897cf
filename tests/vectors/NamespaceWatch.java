import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.common.api.proto.ServerError;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.common.topics.TopicList;

/**
 * Writes namespace_watch.hex: commands 76 to 78 as Pulsar's own codec spells them. With the argument "hash": the hashes
 * in tests/unit/model/test_topic_hash.py. Run it with the libraries of interop/ on the class path:
 * java -cp 'interop/target/libs/*' tests/vectors/NamespaceWatch.java
 */
public final class NamespaceWatch {
    private static final String A = "topic://public/default/a";
    private static final String B = "topic://public/default/b";

    public static void main(String[] arguments) {
        if (arguments.length > 0) {
            hashes();
            return;
        }
        System.out.println("# Written by NamespaceWatch.java: pulsar-client-v5 and Apache Pulsar 5.0.0-M1, "
                + "a namespace watched.");
        say("WATCH_SCALABLE_TOPICS", ">", Commands.newWatchScalableTopics(7, "public/default", Map.of(), null));
        say("WATCH_SCALABLE_TOPICS_UPDATE", "<", Commands.newWatchScalableTopicsSnapshot(7, List.of(A, B)));
        say("WATCH_SCALABLE_TOPICS_UPDATE", "<", Commands.newWatchScalableTopicsDiff(7, List.of(A), List.of(A, B)));
        say("WATCH_SCALABLE_TOPICS_CLOSE", ">", Commands.newWatchScalableTopicsClose(7));
        say("WATCH_SCALABLE_TOPICS", ">", Commands.newWatchScalableTopics(
                8, "public/default", Map.of("owner", "billing"), TopicList.calculateHash(List.of(A, B))));
        say("WATCH_SCALABLE_TOPICS_UPDATE", "<", Commands.newWatchScalableTopicsSnapshot(8, List.of()));
        say("WATCH_SCALABLE_TOPICS_UPDATE", "<", Commands.newWatchScalableTopicsError(
                9, ServerError.AuthorizationError, "not allowed"));
    }

    private static void say(String kind, String way, ByteBuf frame) {
        System.out.println("# " + kind);
        System.out.println(way + " " + ByteBufUtil.hexDump(frame));
    }

    private static void hashes() {
        List<List<String>> sets = List.of(
                List.of(),
                List.of(A),
                List.of(B, A),
                List.of(A + ",topic", B),
                List.of(A + "/b/c", A),
                List.of("topic://public/default/z\u00e4hler", "topic://public/default/zahl",
                        "topic://public/default/\u65e5\u672c\u8a9e"),
                List.of("topic://public/default/\uff5e", "topic://public/default/\ud83d\ude00",
                        "topic://public/default/e"),
                List.of("persistent://public/default/orders-partition-0",
                        "persistent://public/default/orders-partition-1"));
        sets.forEach(set -> System.out.println(TopicList.calculateHash(set) + " " + set));
    }
}
