package anabranch.interop;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;

/**
 * What was sent and confirmed, and what was received, as `key:number`. Numbers of one key grow. A message may come more
 * than once; what counts is where each comes first.
 */
final class History {
    private final Map<String, TreeSet<Integer>> confirmed = new TreeMap<>();
    private final Map<String, TreeSet<Integer>> seen = new HashMap<>();
    private final List<String> disorder = new ArrayList<>();
    private int sent;
    private int received;
    private int repeated;

    synchronized void confirmed(String value) {
        sent++;
        confirmed.computeIfAbsent(key(value), k -> new TreeSet<>()).add(number(value));
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
    }

    synchronized void received(Collection<String> values) {
        values.forEach(this::received);
    }

    synchronized boolean isComplete() {
        return missing().isEmpty();
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
        List<String> missing = new ArrayList<>();
        confirmed.forEach((key, numbers) -> {
            TreeSet<Integer> got = seen.getOrDefault(key, new TreeSet<>());
            numbers.stream().filter(n -> !got.contains(n)).forEach(n -> missing.add(key + ":" + n));
        });
        return missing;
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
        Words.check(disorder.isEmpty(), disorder.size() + " out of order: " + head(disorder));
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
