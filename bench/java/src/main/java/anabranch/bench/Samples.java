package anabranch.bench;

import java.util.Arrays;

/** Latencies in nanoseconds, kept one by one and sorted at the end: exact percentiles, no histogram buckets. */
final class Samples {
    private final long[] values;
    private int count;

    Samples(int most) {
        values = new long[most];
    }

    synchronized void add(long nanos) {
        if (count < values.length) {
            values[count++] = nanos;
        }
    }

    synchronized int count() {
        return count;
    }

    synchronized String json() {
        long[] sorted = Arrays.copyOf(values, count);
        Arrays.sort(sorted);
        return String.format("{\"count\":%d,\"p50_ms\":%.4f,\"p90_ms\":%.4f,\"p99_ms\":%.4f,\"p999_ms\":%.4f,\"max_ms\":%.4f}",
                count, at(sorted, 0.50), at(sorted, 0.90), at(sorted, 0.99), at(sorted, 0.999), at(sorted, 1.0));
    }

    private static double at(long[] sorted, double share) {
        if (sorted.length == 0) {
            return 0;
        }
        int index = (int) Math.ceil(share * sorted.length) - 1;
        return sorted[Math.max(0, index)] / 1e6;
    }
}
