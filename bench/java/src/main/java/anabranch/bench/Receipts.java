package anabranch.bench;

import java.util.concurrent.atomic.LongAdder;

/** Counts what the broker confirmed and what it refused; one refusal makes the run worthless. */
final class Receipts {
    static final LongAdder CONFIRMED = new LongAdder();
    private static volatile Throwable failure;

    private Receipts() {
    }

    static void note(Throwable error) {
        if (error == null) {
            CONFIRMED.increment();
        } else if (failure == null) {
            failure = error;
        }
    }

    static void check() {
        if (failure != null) {
            throw new IllegalStateException("a send failed", failure);
        }
    }
}
