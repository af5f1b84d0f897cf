package anabranch.interop;

import java.util.Objects;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdminException;

/** The words claims are written in. Nothing here waits for ever. */
final class Words {
    static final int WAIT_S = 20;

    interface Action {
        void run() throws Exception;
    }

    interface Condition {
        boolean met() throws Exception;
    }

    private Words() {
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void same(Object expected, Object found) {
        check(Objects.equals(expected, found), "expected " + expected + ", found " + found);
    }

    static void until(String what, Condition condition) throws Exception {
        until(what, WAIT_S, condition);
    }

    static void until(String what, double seconds, Condition condition) throws Exception {
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        while (!condition.met()) {
            check(System.nanoTime() < deadline, "not within " + seconds + " s: " + what);
            Thread.sleep(10);
        }
    }

    /** The admin call is refused as the caller's own fault: 4xx, with words. */
    static PulsarAdminException clientError(Action action) throws Exception {
        try {
            action.run();
        } catch (PulsarAdminException error) {
            int status = error.getStatusCode();
            check(status >= 400 && status < 500, "status " + status + ": " + error.getMessage());
            check(error.getHttpError() != null && !error.getHttpError().isBlank(), "a refusal says why");
            return error;
        }
        throw new AssertionError("it is not refused");
    }

    static void status(int expected, Action action) throws Exception {
        same(expected, clientError(action).getStatusCode());
    }

    /** Refused with an answer, within a time that shows it was not merely a time-out. */
    static Throwable refused(double seconds, Action action) throws Exception {
        long start = System.nanoTime();
        try {
            action.run();
        } catch (AssertionError error) {
            throw error;
        } catch (Exception error) {
            double took = (System.nanoTime() - start) / 1e9;
            check(took < seconds, "it took " + took + " s to refuse: " + error);
            return error;
        }
        throw new AssertionError("it is not refused");
    }

    static void pause(long ms) throws InterruptedException {
        TimeUnit.MILLISECONDS.sleep(ms);
    }
}
