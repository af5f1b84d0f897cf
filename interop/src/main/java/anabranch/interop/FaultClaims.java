package anabranch.interop;

import static anabranch.interop.Words.until;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.Producer;

/** The broker's process is killed under V5 clients. */
final class FaultClaims {
    private final Lab lab;

    FaultClaims(Lab lab) {
        this.lab = lab;
    }

    Map<String, Claim> claims() {
        Map<String, Claim> claims = new LinkedHashMap<>();
        claims.put("a killed broker loses and reorders nothing", this::killed);
        claims.put("a layout outlives the broker", this::layout);
        claims.put("splits go on after a kill", this::splitsAfter);
        return claims;
    }

    private void killed(String name) throws Exception {
        String topic = lab.create(name, 2);
        History stream = new History();
        History queue = new History();
        History alone = new History();
        try (Producer<String> producer = lab.producer(topic);
                Producer<String> other = lab.producer(topic);
                Receiver one = Receiver.of(lab.stream(topic, "s").consumerName("one").subscribe(), stream);
                Receiver two = Receiver.of(lab.queue(topic, "q").subscribe(), queue);
                Receiver three = Receiver.of(lab.checkpoint(topic).startPosition(Checkpoint.earliest()).create(),
                        alone)) {
            Sender inTurn = new Sender(producer, stream, 30).start(200);
            Sender atOnce = new Sender(other, queue, 30, false, "q").start(500);
            for (int n = 0; n < 2; n++) {
                Words.pause(700);
                lab.killAndRestart();
            }
            Words.pause(1500);
            inTurn.finish();
            atOnce.finish();
            stream.awaitAll("everything sent in turn arrives");
            queue.awaitAll("everything sent at once arrives");
        }
        stream.checkNothingIsLost();
        stream.checkOrder();
        queue.checkNothingIsLost();
    }

    private void layout(String name) throws Exception {
        String topic = lab.create(name, 2);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic)) {
            Sender sender = new Sender(producer, history, 20).send(40);
            lab.split(topic, 0);
            sender.send(40);
            lab.merge(topic, 1);
            sender.send(40);
        }
        Object before = lab.metadata(topic);
        lab.killAndRestart();
        until("the layout is the same", () -> before.equals(lab.metadata(topic)));
        try (Receiver receiver = Receiver.of(lab.stream(topic, "s").subscribe(), history)) {
            history.awaitAll("everything arrives");
        }
        history.checkOrder();
    }

    private void splitsAfter(String name) throws Exception {
        String topic = lab.create(name, 1);
        History history = new History();
        try (Producer<String> producer = lab.producer(topic);
                Receiver receiver = Receiver.of(lab.stream(topic, "s").subscribe(), history)) {
            Sender sender = new Sender(producer, history, 30).start(200);
            Words.pause(300);
            lab.split(topic, 0);
            lab.killAndRestart();
            until("a split is done after the restart", () -> {
                try {
                    lab.split(topic, 0);
                    return true;
                } catch (org.apache.pulsar.client.admin.PulsarAdminException notYet) {
                    return false;
                }
            });
            lab.merge(topic, 1);
            Words.pause(500);
            sender.finish();
            history.awaitAll("everything arrives");
        }
        history.checkOrder();
    }
}
