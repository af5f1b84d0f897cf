package anabranch.interop;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;

/**
 * Random splits and merges while every kind of V5 client works on one topic: producers that send in turn and at once,
 * stream consumers that join and leave, queue consumers, a checkpoint consumer. Nothing may be lost for anybody, and what
 * was sent in turn must come in the order of its key. Repetitions are counted and reported: a consumer that leaves
 * without its last acknowledgement, and a send that is tried again, may cause them.
 *
 * <p>Arguments: service URL, admin URL, seconds, seed, segments at most, milliseconds between two changes.
 */
public final class Exerciser {
    private static final int KEYS = 200;
    private static final double SETTLE_S = 90;

    private final Lab lab;
    private final Random random;
    private final double seconds;
    private final int segmentsMax;
    private final long everyMs;
    private final List<Worker> members = new ArrayList<>();
    private int joined;
    private int changes;
    private int refusals;

    /** A stream consumer with a client of its own, so that its leaving is seen. */
    private record Worker(PulsarClient client, Receiver receiver) {
        void leave() throws Exception {
            receiver.close();
            client.close();
        }
    }

    private Exerciser(Lab lab, double seconds, long seed, int segmentsMax, long everyMs) {
        this.lab = lab;
        this.seconds = seconds;
        this.random = new Random(seed);
        this.segmentsMax = segmentsMax;
        this.everyMs = everyMs;
    }

    public static void main(String[] arguments) throws Exception {
        double seconds = Double.parseDouble(arguments[2]);
        long seed = Long.parseLong(arguments[3]);
        int segmentsMax = arguments.length > 4 ? Integer.parseInt(arguments[4]) : 8;
        long everyMs = arguments.length > 5 ? Long.parseLong(arguments[5]) : 300;
        int code = 0;
        try (Lab lab = new Lab(arguments[0], arguments[1])) {
            new Exerciser(lab, seconds, seed, segmentsMax, everyMs).run("exercise-" + seed + "-" + System.nanoTime());
        } catch (Throwable error) {
            System.out.println("FAILED seed " + seed + ": " + error);
            error.printStackTrace();
            code = 1;
        }
        System.exit(code);
    }

    private void run(String name) throws Exception {
        String topic = lab.create(name, 4);
        History stream = new History();
        History queue = new History();
        History alone = new History();
        try (Producer<String> inTurnProducer = lab.producer(topic);
                Producer<String> unbatchedProducer = lab.client.newProducer(
                        org.apache.pulsar.client.api.v5.schema.Schema.string()).topic(topic)
                        .sendTimeout(Duration.ofSeconds(10)).batchingPolicy(BatchingPolicy.ofDisabled()).create();
                Producer<String> atOnceProducer = lab.producer(topic)) {
            // Every history hears of every confirmed message; order is asked of those sent in turn only.
            History sent = new Shared(stream, queue, alone);
            Sender inTurn = new Sender(inTurnProducer, sent, KEYS, true, "turn");
            Sender unbatched = new Sender(unbatchedProducer, sent, KEYS, true, "single");
            Sender atOnce = new Sender(atOnceProducer, sent, KEYS, false, "once");
            List<Receiver> receivers = new ArrayList<>();
            receivers.add(Receiver.of(lab.queue(topic, "queue").subscribe(), queue));
            receivers.add(Receiver.of(lab.queue(topic, "queue").receiverQueueSize(50).subscribe(), queue));
            receivers.add(Receiver.of(lab.checkpoint(topic).startPosition(Checkpoint.earliest()).create(), alone));
            join(topic, stream);
            join(topic, stream);
            inTurn.start(200);
            unbatched.start(200);
            atOnce.start(1000);
            disturb(topic, stream);
            inTurn.finish();
            unbatched.finish();
            atOnce.finish();
            stream.awaitAll("everything arrives at the stream consumers", SETTLE_S);
            queue.awaitAll("everything arrives at the queue consumers", SETTLE_S);
            alone.awaitAll("everything arrives at the checkpoint consumer", SETTLE_S);
            for (Worker member : members) {
                member.leave();
            }
            for (Receiver receiver : receivers) {
                receiver.close();
            }
        }
        System.out.println("stream: " + stream);
        System.out.println("queue: " + queue);
        System.out.println("checkpoint: " + alone);
        System.out.printf("%d splits and merges, %d refused for the moment, %d stream consumers, epoch %d%n", changes,
                refusals, joined, lab.metadata(topic).getEpoch());
        stream.checkOrder("turn", "single");
        System.out.println("ok exercise");
    }

    private void disturb(String topic, History history) throws Exception {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            Words.pause(everyMs / 2 + random.nextInt((int) everyMs));
            try {
                lab.reshape(topic, random, segmentsMax);
                changes++;
            } catch (PulsarAdminException error) {
                // Another change is still under way, or the layout has moved since it was read.
                Words.check(error.getStatusCode() < 500 || error.getStatusCode() == 503, "status "
                        + error.getStatusCode() + ": " + error.getMessage());
                refusals++;
            }
            if (random.nextInt(8) == 0) {
                if (members.size() < 2 || members.size() < 4 && random.nextBoolean()) {
                    join(topic, history);
                } else {
                    members.remove(random.nextInt(members.size())).leave();
                }
            }
        }
    }

    private void join(String topic, History history) throws Exception {
        PulsarClient own = lab.newClient();
        members.add(new Worker(own, Receiver.of(
                lab.stream(own, topic, "stream").consumerName("member-" + joined++).subscribe(), history)));
    }

    /** What is confirmed is expected by everybody. */
    private static final class Shared extends History {
        private final History[] all;

        Shared(History... all) {
            this.all = all;
        }

        @Override
        synchronized void confirmed(String value) {
            for (History history : all) {
                history.confirmed(value);
            }
        }
    }
}
