package anabranch.interop;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Claims about a broker, checked with Pulsar's V5 client and its admin client. Arguments: service URL, admin URL, a
 * group (or `all`) and, if not all claims are to be checked, a part of the names of those that are. A line
 * `please restart` asks whoever started this program to kill the broker, start it again and write `restarted`.
 */
public final class V5Claims {
    private V5Claims() {
    }

    public static void main(String[] arguments) throws Exception {
        int failed = 0;
        try (Lab lab = new Lab(arguments[0], arguments[1])) {
            for (Map.Entry<String, Map<String, Claim>> group : groups(lab).entrySet()) {
                if (!arguments[2].equals("all") && !arguments[2].equals(group.getKey())) {
                    continue;
                }
                for (Map.Entry<String, Claim> claim : group.getValue().entrySet()) {
                    if (arguments.length < 4 || claim.getKey().contains(arguments[3])) {
                        failed += holds(group.getKey(), claim.getKey(), claim.getValue()) ? 0 : 1;
                    }
                }
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }

    private static boolean holds(String group, String name, Claim claim) {
        String topic = "v5-" + name.replace(' ', '-') + "-" + System.nanoTime();
        long start = System.nanoTime();
        try {
            claim.check(topic);
            System.out.printf("ok %s: %s (%.1f s)%n", group, name, (System.nanoTime() - start) / 1e9);
            return true;
        } catch (Throwable error) {
            System.out.printf("FAILED %s: %s (%.1f s): %s%n", group, name, (System.nanoTime() - start) / 1e9,
                    error.toString().strip().lines().findFirst().orElse(""));
            error.printStackTrace();
            return false;
        }
    }

    private static Map<String, Map<String, Claim>> groups(Lab lab) {
        Map<String, Map<String, Claim>> groups = new LinkedHashMap<>();
        groups.put("admin", new AdminClaims(lab).claims());
        groups.put("producer", new ProducerClaims(lab).claims());
        groups.put("stream", new StreamClaims(lab).claims());
        groups.put("queue", new QueueClaims(lab).claims());
        groups.put("checkpoint", new CheckpointClaims(lab).claims());
        groups.put("regular", new RegularTopicClaims(lab).claims());
        groups.put("autoscale", new AutoScaleClaims(lab).claims());
        groups.put("namespace", new NamespaceClaims(lab).claims());
        groups.put("fault", new FaultClaims(lab).claims());
        groups.put("deduplication", new DedupClaims(lab).claims());
        return groups;
    }

}
