package anabranch.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * What was sent and confirmed, and what was received, as `key:number`. Numbers of one key grow. A message may come more
 * than once; what counts is where each comes first.
 */
class History {
    private static final TreeSet<Integer> NONE = new TreeSet<>();

    private final Map<String, TreeSet<Integer>> seen = new HashMap<>();
    /** Confirmed, but not received so far. */
    private final Set<String> outstanding = new LinkedHashSet<>();
    private final List<String> disorder = new ArrayList<>();
    private int sent;
    private int received;
    private int repeated;

    synchronized void confirmed(String value) {
        sent++;
        if (!seen.getOrDefault(key(value), NONE).contains(number(value))) {
            outstanding.add(value);
        }
    }

    synchronized void received(String value) {
        received++;
        TreeSet<Integer> before = seen.computeIfAbsent(key(value), k -> new TreeSet<>());
        int number = number(value);
        if (before.contains(number)) {
            repeated++;
        } else if (!before.isEmpty() && before.last() > number) {
            disorder.add(value + " after " + before.last());
        }
        before.add(number);
        outstanding.remove(value);
    }

    synchronized void received(Collection<String> values) {
        values.forEach(this::received);
    }

    synchronized boolean isComplete() {
        return outstanding.isEmpty();
    }

    /** Waits until everything confirmed so far was received. */
    void awaitAll(String what) throws Exception {
        awaitAll(what, 2 * Words.WAIT_S);
    }

    void awaitAll(String what, double seconds) throws Exception {
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        while (!isComplete() && System.nanoTime() < deadline) {
            Words.pause(10);
        }
        Words.check(isComplete(), what + " within " + seconds + " s; missing " + head(missing()) + " of " + this);
    }

    synchronized List<String> missing() {
        return new ArrayList<>(outstanding);
    }

    synchronized int sent() {
        return sent;
    }

    synchronized int repeated() {
        return repeated;
    }

    synchronized int disordered() {
        return disorder.size();
    }

    synchronized void checkNothingIsLost() {
        List<String> missing = missing();
        Words.check(missing.isEmpty(), missing.size() + " of " + sent + " lost: " + head(missing));
    }

    synchronized void checkOrder() {
        checkOrder("");
    }

    /** Of the keys that begin with one of these. */
    synchronized void checkOrder(String... prefixes) {
        List<String> found = disorder.stream()
                .filter(value -> Arrays.stream(prefixes).anyMatch(value::startsWith)).toList();
        Words.check(found.isEmpty(), found.size() + " out of order: " + head(found));
    }

    synchronized void checkNothingTwice() {
        Words.check(repeated == 0, repeated + " came twice");
    }

    @Override
    public synchronized String toString() {
        return sent + " confirmed, " + received + " received, " + repeated + " repeated, " + disorder.size()
                + " out of order";
    }

    private static List<String> head(List<String> all) {
        return all.subList(0, Math.min(10, all.size()));
    }

    private static String key(String value) {
        return value.substring(0, value.indexOf(':'));
    }

    private static int number(String value) {
        return Integer.parseInt(value.substring(value.indexOf(':') + 1));
    }
}
