import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Sends numbered messages one after the other, and consumes them.  A line for each: "sent BODY", "failed BODY REASON", "got BODY MESSAGE-ID".
 * It ends when as many were sent as asked for, and all that were sent were received.  Messages of kind "checked" are of transactions that
 * are left open: their checks are answered with "unknown" until a line comes in, which the line "asked BODY" of each says.
 *
 * Arguments: simple, push or checked, endpoints, topic, group, messages, pause in ms.
 */
public class Load5 {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Set<String> GOT = ConcurrentHashMap.newKeySet();
    private static final CountDownLatch COMMITS = new CountDownLatch(1);

    public static void main(String[] arguments) throws Exception {
        String kind = arguments[0], topic = arguments[2], group = arguments[3];
        int messages = Integer.parseInt(arguments[4]), pauseMs = Integer.parseInt(arguments[5]);
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[1]).enableSsl(false).build();
        Map<String, FilterExpression> all = Collections.singletonMap(topic, FilterExpression.SUB_ALL);
        if (kind.equals("push")) {
            PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setSubscriptionExpressions(all).setMessageListener(Load5::note).build();
        } else {
            SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setAwaitDuration(Duration.ofSeconds(2)).setSubscriptionExpressions(all).build();
            background(() -> poll(consumer));
        }
        background(() -> {
            System.in.read();
            COMMITS.countDown();
        });
        Set<String> sent = send(producer(configuration, topic), kind.equals("checked"), topic, messages, pauseMs);
        while (!GOT.containsAll(sent)) {
            Thread.sleep(50);
        }
        System.exit(0);
    }

    private static Producer producer(ClientConfiguration configuration, String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).setTransactionChecker(view -> {
            say("asked", text(view));
            return COMMITS.getCount() == 0 ? TransactionResolution.COMMIT : TransactionResolution.UNKNOWN;
        }).build();
    }

    private static Set<String> send(Producer producer, boolean half, String topic, int messages, int pauseMs) throws Exception {
        Set<String> sent = new HashSet<>();
        for (int number = 0; sent.size() < messages; number++) {
            String body = "m" + number;
            Message message = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8)).build();
            try {
                if (half) {
                    producer.send(message, producer.beginTransaction());
                } else {
                    producer.send(message);
                }
                sent.add(body);
                say("sent", body);
            } catch (Exception error) {
                say("failed", body, error.getClass().getSimpleName());
                Thread.sleep(1000);
            }
            Thread.sleep(pauseMs);
        }
        return sent;
    }

    private static void poll(SimpleConsumer consumer) throws Exception {
        while (true) {
            try {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(15))) {
                    note(view);
                    consumer.ack(view); // it may be stored although its answer is lost: what counts is what was received
                }
            } catch (Exception error) {
                Thread.sleep(100);
            }
        }
    }

    private static ConsumeResult note(MessageView view) {
        GOT.add(text(view));
        say("got", text(view), view.getMessageId().toString());
        return ConsumeResult.SUCCESS;
    }

    interface Task {
        void run() throws Exception;
    }

    private static void background(Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (Exception error) {
                say("bad", error.toString());
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static synchronized void say(String... words) {
        System.out.println(String.join(" ", words));
    }

    private static String text(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }
}
