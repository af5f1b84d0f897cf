package anabranch.bench;

import java.util.function.LongConsumer;

/** A broker under test, seen through its own Java client. Both clients are driven through this one face. */
interface Target extends AutoCloseable {

    /** Creates the topic if the system wants that done first, and each subscription at the topic's beginning. */
    void prepare(String topic, String[] subscriptions) throws Exception;

    Sender sender(String topic, Options options) throws Exception;

    Receiver receiver(String topic, String subscription, Options options) throws Exception;

    @Override
    void close() throws Exception;

    static Target open(Options options) throws Exception {
        String system = options.text("system");
        return switch (system) {
            case "pulsar" -> new PulsarTarget(options);
            case "v5" -> new V5Target(options);
            case "kafka" -> new KafkaTarget(options);
            default -> throw new IllegalArgumentException("system must be pulsar, v5 or kafka, got " + system);
        };
    }

    /** Sends without waiting for receipts, and waits only when too many are outstanding. */
    interface Sender extends AutoCloseable {
        /** Sends; the broker's receipts are counted in {@link Receipts}. */
        void send(byte[] payload) throws Exception;

        /** Sends; the receipt is told to `onReceipt` with the stamp given here. */
        void send(byte[] payload, long stamp, LongConsumer onReceipt) throws Exception;

        void flush() throws Exception;

        @Override
        void close() throws Exception;
    }

    /** Receives and acknowledges. */
    interface Receiver extends AutoCloseable {
        /** Receives `count` messages as fast as they come; returns their payload bytes. */
        long drain(long count) throws Exception;

        /** Receives until interrupted or closed, handing each payload's first eight bytes to `onStamp`. */
        void listen(LongConsumer onStamp) throws Exception;

        @Override
        void close() throws Exception;
    }
}
