import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Sends and consumes each kind of message over gRPC: "ok WHAT" or "bad WHAT WHY" a line.
 *
 * Arguments: endpoints, topic.
 */
public class Kinds5 {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final CountDownLatch CHECKED = new CountDownLatch(1);
    private static ClientConfiguration configuration;
    private static String topic;
    private static Producer producer;

    interface Step {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();
        topic = arguments[1];
        producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).setTransactionChecker(view -> {
            if (text(view).equals("checked")) {
                CHECKED.countDown();
            }
            return TransactionResolution.COMMIT;
        }).build();
        step("normal", () -> receives("normal", send("normal", message -> message.setKeys("k-1").addProperty("amount", "42")), "normal"));
        step("async", () -> producer.sendAsync(message("async", builder -> builder)).get(10, TimeUnit.SECONDS));
        step("fifo", Kinds5::fifo);
        step("delayed", Kinds5::delayed);
        step("transactions", Kinds5::transactions);
        step("again", Kinds5::again);
        step("sql", Kinds5::sql);
        step("push", Kinds5::push);
        producer.close();
        System.exit(0);
    }

    private static void step(String name, Step step) {
        try {
            step.run();
            System.out.println("ok " + name);
        } catch (Throwable error) {
            System.out.println("bad " + name + " " + error);
        }
    }

    interface Change {
        MessageBuilder of(MessageBuilder builder);
    }

    private static Message message(String tag, Change change, String... body) {
        byte[] bytes = (body.length > 0 ? body[0] : tag).getBytes(StandardCharsets.UTF_8);
        return change.of(PROVIDER.newMessageBuilder().setTopic(topic).setTag(tag).setBody(bytes)).build();
    }

    private static SendReceipt send(String tag, Change change, String... body) throws Exception {
        return producer.send(message(tag, change, body));
    }

    private static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static SimpleConsumer consumer(String group, FilterExpression expression) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(3)).setSubscriptionExpressions(Collections.singletonMap(topic, expression)).build();
    }

    /** Receives the messages of a tag, acknowledges them, and compares their bodies. */
    private static void receives(String tag, Object sent, String... bodies) throws Exception {
        try (SimpleConsumer consumer = consumer("g-" + tag, new FilterExpression(tag))) {
            receives(consumer, bodies);
        }
    }

    private static void receives(SimpleConsumer consumer, String... bodies) throws Exception {
        List<String> found = new ArrayList<>();
        long end = System.currentTimeMillis() + 60_000;
        while (found.size() < bodies.length && System.currentTimeMillis() < end) {
            for (MessageView view : consumer.receive(16, Duration.ofSeconds(15))) {
                consumer.ack(view);
                found.add(text(view));
            }
        }
        check(found.equals(List.of(bodies)), found);
    }

    private static void check(boolean is, Object found) {
        if (!is) {
            throw new AssertionError(String.valueOf(found));
        }
    }

    private static void fifo() throws Exception {
        for (int number = 0; number < 3; number++) {
            send("fifo", message -> message.setMessageGroup("g"), "f" + number);
        }
        receives("fifo", null, "f0", "f1", "f2");
    }

    private static void delayed() throws Exception {
        long due = System.currentTimeMillis() + 1500;
        SendReceipt recalled = send("delayed", message -> message.setDeliveryTimestamp(due + 3000), "recalled");
        producer.recallMessage(topic, recalled.getRecallHandle());
        send("delayed", message -> message.setDeliveryTimestamp(due), "delayed");
        receives("delayed", null, "delayed");
        check(System.currentTimeMillis() >= due - 100, "too early");
    }

    private static void transactions() throws Exception {
        Transaction committed = producer.beginTransaction(), dropped = producer.beginTransaction(), open = producer.beginTransaction();
        producer.send(message("half", builder -> builder, "committed"), committed);
        producer.send(message("half", builder -> builder, "dropped"), dropped);
        committed.commit();
        dropped.rollback();
        receives("half", null, "committed");
        producer.send(message("half2", builder -> builder, "checked"), open);
        check(CHECKED.await(60, TimeUnit.SECONDS), "not asked");
        receives("half2", null, "checked");
    }

    private static void again() throws Exception {
        try (SimpleConsumer consumer = consumer("g-again", new FilterExpression("again"))) {
            send("again", builder -> builder);
            MessageView first = one(consumer);
            consumer.changeInvisibleDuration(first, Duration.ofSeconds(10));
            MessageView second = one(consumer);
            check(second.getDeliveryAttempt() == 2, second.getDeliveryAttempt());
            consumer.ack(second);
        }
    }

    private static MessageView one(SimpleConsumer consumer) throws Exception {
        for (int attempt = 0; attempt < 20; attempt++) {
            List<MessageView> found = consumer.receive(1, Duration.ofSeconds(15));
            if (!found.isEmpty()) {
                return found.get(0);
            }
        }
        throw new AssertionError("no message");
    }

    private static void sql() throws Exception {
        for (int number = 0; number < 3; number++) {
            String value = Integer.toString(number);
            send("sql", message -> message.addProperty("n", value), "n" + value);
        }
        try (SimpleConsumer consumer = consumer("g-sql", new FilterExpression("TAGS = 'sql' AND n > 0", FilterExpressionType.SQL92))) {
            List<String> found = new ArrayList<>();
            while (found.size() < 2) {
                MessageView view = one(consumer);
                consumer.ack(view);
                found.add(text(view));
            }
            Collections.sort(found);
            check(found.equals(List.of("n1", "n2")), found);
        }
    }

    private static void push() throws Exception {
        CountDownLatch got = new CountDownLatch(3);
        List<String> refused = Collections.synchronizedList(new ArrayList<>());
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup("g-push")
            .setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression("push"))).setMessageListener(view -> {
                if (text(view).equals("p1") && view.getDeliveryAttempt() == 1) {
                    refused.add("p1");
                    return ConsumeResult.FAILURE;
                }
                got.countDown();
                return ConsumeResult.SUCCESS;
            }).build();
        for (int number = 0; number < 3; number++) {
            send("push", builder -> builder, "p" + number);
        }
        check(got.await(60, TimeUnit.SECONDS), got.getCount());
        check(refused.size() == 1, refused);
        consumer.close();
    }
}
