import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * RocketMQ's Java client over gRPC: fills a topic, or receives and acknowledges what is in it and prints the messages a second.
 *
 * Arguments: fill ENDPOINTS TOPIC MESSAGES | consume ENDPOINTS TOPIC MESSAGES GROUP THREADS. Measured from a quarter of the messages
 * to nine tenths: a lost answer keeps its messages back for the invisible time.
 */
public class Leases {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int BATCH = 32, ON_THEIR_WAY = 64, BODY = 1024;

    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Exception error) {
            System.out.println("failed " + error);
            System.exit(1); // its threads go on
        }
    }

    private static void run(String[] arguments) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[1]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(30)).build();
        int messages = Integer.parseInt(arguments[3]);
        if (arguments[0].equals("fill")) {
            fill(configuration, arguments[2], messages);
        } else {
            consume(configuration, arguments[2], messages, arguments[4], Integer.parseInt(arguments[5]));
        }
    }

    private static void fill(ClientConfiguration configuration, String topic, int messages) throws Exception {
        byte[] body = new byte[BODY];
        new Random(17).nextBytes(body);
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
        for (int first = 0; first < messages; first += ON_THEIR_WAY) {
            List<CompletableFuture<?>> sends = new ArrayList<>();
            for (int number = first; number < Math.min(messages, first + ON_THEIR_WAY); number++) {
                sends.add(producer.sendAsync(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build()));
            }
            CompletableFuture.allOf(sends.toArray(new CompletableFuture[0])).get();
        }
        System.out.println("filled " + messages);
    }

    private static void consume(ClientConfiguration configuration, String topic, int messages, String group, int threads) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(1)).setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
        AtomicInteger done = new AtomicInteger();
        AtomicLong began = new AtomicLong(), ended = new AtomicLong();
        List<Thread> running = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            Thread thread = new Thread(() -> work(consumer, messages, done, began, ended));
            running.add(thread);
            thread.start();
        }
        for (Thread thread : running) {
            thread.join();
        }
        System.out.println("rate " + (messages * 9 / 10 - messages / 4) * 1e9 / (ended.get() - began.get()));
    }

    private static void work(SimpleConsumer consumer, int messages, AtomicInteger done, AtomicLong began, AtomicLong ended) {
        while (done.get() < messages * 9 / 10) {
            try {
                List<CompletableFuture<Void>> acknowledged = new ArrayList<>();
                for (MessageView view : consumer.receive(BATCH, Duration.ofSeconds(60))) {
                    acknowledged.add(consumer.ackAsync(view));
                }
                for (CompletableFuture<Void> each : acknowledged) {
                    each.get();
                    int count = done.incrementAndGet();
                    if (count == messages / 4) {
                        began.set(System.nanoTime());
                    } else if (count == messages * 9 / 10) {
                        ended.set(System.nanoTime());
                    }
                }
            } catch (Exception error) {
                System.out.println("failed " + error);
            }
        }
    }
}
