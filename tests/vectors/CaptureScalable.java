import java.time.Duration;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** What capture_scalable.py has Pulsar's V5 client do. Says "split" and waits for a line once it is ready for that. */
public final class CaptureScalable {
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0];
        String topic = arguments[1];
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build()) {
            try {
                client.newProducer(Schema.string()).topic("topic://public/nowhere/golden").create();
            } catch (PulsarClientException expected) {
                System.err.println("refused, as it should be: " + expected.getMessage());
            }
            Producer<String> producer = client.newProducer(Schema.string()).topic(topic).create();
            StreamConsumer<String> consumer = client.newStreamConsumer(Schema.string())
                    .topic(topic)
                    .subscriptionName("sub")
                    .consumerName("golden")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                    .subscribe();
            producer.newMessage().key("k").value("before").send();
            System.out.println("split");
            System.in.read();
            for (String value : new String[] {"before", "after"}) {
                if (value.equals("after")) {
                    producer.newMessage().key("k").value(value).send();
                }
                Message<String> message = consumer.receive(Duration.ofSeconds(20));
                consumer.acknowledgeCumulative(message.id());
            }
            Thread.sleep(1000);
            consumer.close();
            producer.close();
        }
        System.exit(0);
    }
}
