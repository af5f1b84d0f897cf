package anabranch.bench;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * One load on one broker. Writes JSON lines to standard output: {"event":"begin"} and {"event":"end"} around the
 * timed part, so that whoever started it can read the broker's CPU at those moments, then {"event":"result",...}.
 */
public final class Load {
    private static final OperatingSystemMXBean OS =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private Load() {
    }

    public static void main(String[] args) throws Exception {
        Locale.setDefault(Locale.ROOT);
        if (args.length == 0) {
            System.err.println("usage: Load produce|fill|consume|latency|split|leave|first|steady key=value...");
            System.exit(2);
        }
        Options options = new Options(args, 1);
        switch (args[0]) {
            case "produce" -> produce(options);
            case "fill" -> fill(options);
            case "consume" -> consume(options);
            case "latency" -> latency(options);
            case "split" -> Reshaping.split(options);
            case "leave" -> Reshaping.leave(options);
            case "first" -> first(options);
            case "steady" -> Steady.run(options);
            default -> throw new IllegalArgumentException("no such load: " + args[0]);
        }
        // Client libraries leave helper threads behind; the result is out, so nothing is worth waiting for.
        System.exit(0);
    }

    /** Sends at full speed for warmup + seconds and reports what was confirmed inside the seconds. */
    private static void produce(Options options) throws Exception {
        byte[] payload = payload((int) options.number("size", 1024));
        try (Target target = Target.open(options); Target.Sender sender = target.sender(options.text("topic"), options)) {
            sendFor(sender, payload, options.seconds("warmup", 4));
            Span span = new Span();
            long before = Receipts.CONFIRMED.sum();
            sendFor(sender, payload, options.seconds("seconds", 10));
            long confirmed = Receipts.CONFIRMED.sum() - before;
            span.end();
            sender.flush();
            Receipts.check();
            span.result(confirmed, confirmed * payload.length, "");
        }
    }

    private static void sendFor(Target.Sender sender, byte[] payload, double seconds) throws Exception {
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < deadline) {
            for (int i = 0; i < 64; i++) {
                sender.send(payload);
            }
            Receipts.check();
        }
    }

    /** Makes the subscriptions, then sends `count` messages: the backlog of a catch-up run. */
    private static void fill(Options options) throws Exception {
        byte[] payload = payload((int) options.number("size", 1024));
        long count = options.number("count", 1_000_000);
        String topic = options.text("topic");
        try (Target target = Target.open(options)) {
            target.prepare(topic, options.text("subscriptions").split(","));
            try (Target.Sender sender = target.sender(topic, options)) {
                Span span = new Span();
                for (long i = 0; i < count; i++) {
                    sender.send(payload);
                }
                sender.flush();
                span.end();
                Receipts.check();
                span.result(count, count * payload.length, "");
            }
        }
    }

    /** Drains a warm-up topic, then the measured one; the time runs from subscribing to the last message. */
    private static void consume(Options options) throws Exception {
        String subscription = options.text("subscription");
        try (Target target = Target.open(options)) {
            long warm = options.number("warm_count", 0);
            if (warm > 0) {
                try (var receiver = target.receiver(options.text("warm_topic"), subscription, options)) {
                    receiver.drain(warm);
                }
            }
            long count = options.number("count", 1_000_000);
            Span span = new Span();
            try (var receiver = target.receiver(options.text("topic"), subscription, options)) {
                long bytes = receiver.drain(count);
                span.end();
                span.result(count, bytes, "");
            }
        }
    }

    /** Sends at a fixed rate and measures the receipt and the arrival at a consumer in this same process. */
    private static void latency(Options options) throws Exception {
        int rate = (int) options.number("rate", 1_000);
        int warm = (int) (options.seconds("warmup", 5) * rate);
        int count = (int) (options.seconds("seconds", 10) * rate);
        String topic = options.text("topic");
        Samples published = new Samples(count);
        Samples arrived = new Samples(count);
        long[] timedFrom = {Long.MAX_VALUE};
        try (Target target = Target.open(options)) {
            target.prepare(topic, new String[] {"latency"});
            try (var receiver = target.receiver(topic, "latency", options);
                    var sender = target.sender(topic, options)) {
                Thread listener = new Thread(() -> {
                    try {
                        receiver.listen(stamp -> keep(arrived, stamp, timedFrom));
                    } catch (Exception stopped) {
                        // Interrupted at the end of the run; anything earlier shows as missing samples.
                    }
                });
                listener.setDaemon(true);
                listener.start();
                pace(sender, warm, rate, options, published, timedFrom);
                Span span = new Span();
                timedFrom[0] = System.nanoTime();
                double late = pace(sender, count, rate, options, published, timedFrom);
                span.end();
                long patience = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
                while ((arrived.count() < count || published.count() < count) && System.nanoTime() < patience) {
                    Thread.sleep(10);
                }
                listener.interrupt();
                Receipts.check();
                span.result(count, (long) count * options.number("size", 1024), String.format(
                        ",\"late_ms\":%.3f,\"publish\":%s,\"end_to_end\":%s", late, published.json(), arrived.json()));
                listener.join();
            }
        }
    }

    private static void keep(Samples samples, long stamp, long[] timedFrom) {
        if (stamp >= timedFrom[0]) {
            samples.add(System.nanoTime() - stamp);
        }
    }

    /** Sends `count` messages on a fixed timetable; returns how late the latest one left, in milliseconds. */
    private static double pace(Target.Sender sender, int count, int rate, Options options, Samples published,
            long[] timedFrom) throws Exception {
        int size = (int) options.number("size", 1024);
        long gap = 1_000_000_000L / rate;
        long start = System.nanoTime();
        long worst = 0;
        byte[] filling = payload(size);
        for (int i = 0; i < count; i++) {
            long due = start + i * gap;
            long now;
            while ((now = System.nanoTime()) < due) {
                LockSupport.parkNanos(due - now);
            }
            worst = Math.max(worst, now - due);
            byte[] message = filling.clone();
            ByteBuffer.wrap(message).putLong(now);
            sender.send(message, now, stamp -> keep(published, stamp, timedFrom));
        }
        sender.flush();
        return worst / 1e6;
    }

    /** Waits for a line on standard input, then tries to publish one message until a broker confirms it. */
    private static void first(Options options) throws Exception {
        System.out.println("{\"event\":\"ready\"}");
        System.out.flush();
        System.in.read();
        while (true) {
            try (Target target = Target.open(options);
                    Target.Sender sender = target.sender(options.text("topic"), options)) {
                sender.send(payload(100));
                sender.flush();
                Receipts.check();
                break;
            } catch (Exception notYet) {
                Thread.sleep(10);
            }
        }
        System.out.printf("{\"event\":\"result\",\"unix\":%.3f}%n", System.currentTimeMillis() / 1e3);
    }

    static byte[] payload(int size) {
        byte[] bytes = new byte[size];
        // Incompressible, and the same in every run.
        new Random(42).nextBytes(bytes);
        return bytes;
    }

    /** The timed part of a run: wall time and this process's CPU time. */
    static final class Span {
        private final long cpuFrom;
        private final long from;
        private long cpu;
        private long wall;

        Span() {
            System.out.println("{\"event\":\"begin\"}");
            System.out.flush();
            cpuFrom = OS.getProcessCpuTime();
            from = System.nanoTime();
        }

        void end() {
            wall = System.nanoTime() - from;
            cpu = OS.getProcessCpuTime() - cpuFrom;
            System.out.println("{\"event\":\"end\"}");
            System.out.flush();
        }

        void result(long messages, long bytes, String more) {
            double seconds = wall / 1e9;
            System.out.printf("{\"event\":\"result\",\"messages\":%d,\"bytes\":%d,\"seconds\":%.4f,"
                    + "\"per_second\":%.1f,\"mb_per_second\":%.2f,\"client_cpu_seconds\":%.3f%s}%n",
                    messages, bytes, seconds, messages / seconds, bytes / seconds / 1e6, cpu / 1e9, more);
            System.out.flush();
        }
    }
}
