import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Every kind of message and consumer, one after the other.  A line for each: "ok NAME" or "bad NAME DETAIL". */
public class Kinds {
    private static String nameServer;
    private static String topic;
    private static DefaultMQProducer producer;

    public static void main(String[] arguments) throws Exception {
        nameServer = arguments[0];
        topic = arguments[1];
        producer = new DefaultMQProducer("kinds-producer");
        producer.setNamesrvAddr(nameServer);
        producer.setPollNameServerInterval(1000);
        producer.start();
        Set<String> sent = send();
        concurrently(sent);
        orderly();
        transactions();
        lookups();
        filters();
        litePull();
        traces();
        producer.shutdown();
        System.exit(0);
    }

    private static Set<String> send() throws Exception {
        Set<String> sent = new HashSet<>();
        for (int number = 0; number < 20; number++) {
            String body = "sync" + number;
            SendResult result = producer.send(message(number % 2 == 0 ? "even" : "odd", body, sent));
            check("sync", result.getSendStatus() == SendStatus.SEND_OK, result);
        }
        AtomicInteger failed = new AtomicInteger();
        CountDownLatch answered = new CountDownLatch(50);
        for (int number = 0; number < 50; number++) {
            producer.send(message("even", "async" + number, sent), new SendCallback() {
                public void onSuccess(SendResult result) {
                    answered.countDown();
                }

                public void onException(Throwable error) {
                    failed.incrementAndGet();
                    answered.countDown();
                }
            });
        }
        check("async", answered.await(20, TimeUnit.SECONDS) && failed.get() == 0, failed);
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < 32; number++) {
            batch.add(message("batch", "batch" + number, sent));
        }
        SendResult result = producer.send(batch);
        check("batch", result.getMsgId().split(",").length == 32, result);
        producer.sendOneway(message("even", "oneway", sent));
        char[] large = new char[100_000];
        Arrays.fill(large, 'x');
        producer.send(message("even", new String(large), sent));
        Message delayed = message("even", "delayed", sent);
        delayed.setDelayTimeLevel(1);
        producer.send(delayed);
        return sent;
    }

    private static void concurrently(Set<String> sent) throws Exception {
        Map<String, AtomicInteger> got = new ConcurrentHashMap<>();
        AtomicInteger refused = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer("kinds-concurrently");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = body(message);
                if (body.equals("sync7") && message.getReconsumeTimes() == 0) {
                    refused.incrementAndGet();
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                got.computeIfAbsent(body, key -> new AtomicInteger()).incrementAndGet();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(() -> got.keySet().containsAll(sent));
        Set<String> missing = new HashSet<>(sent);
        missing.removeAll(got.keySet());
        check("concurrently", missing.isEmpty() && got.values().stream().allMatch(times -> times.get() == 1), missing.size());
        check("retry", refused.get() == 1 && got.containsKey("sync7"), refused);
        consumer.shutdown();
    }

    private static void orderly() throws Exception {
        for (int number = 0; number < 60; number++) {
            Message message = new Message(topic, "ordered", Integer.toString(number).getBytes(StandardCharsets.UTF_8));
            producer.send(message, (queues, sending, key) -> queues.get((Integer) key % queues.size()), number % 3);
        }
        Map<Integer, List<Integer>> got = new ConcurrentHashMap<>();
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer("kinds-orderly");
        consumer.subscribe(topic, "ordered");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                int number = Integer.parseInt(body(message));
                got.computeIfAbsent(number % 3, key -> new ArrayList<>()).add(number);
                count.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        await(() -> count.get() >= 60);
        boolean ordered = got.values().stream().allMatch(numbers -> numbers.equals(numbers.stream().sorted().toList()));
        check("orderly", count.get() == 60 && ordered, got);
        consumer.shutdown();
    }

    private static void transactions() throws Exception {
        AtomicInteger checks = new AtomicInteger();
        TransactionMQProducer transacting = new TransactionMQProducer("kinds-transactions");
        transacting.setNamesrvAddr(nameServer);
        transacting.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.incrementAndGet();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        transacting.start();
        for (LocalTransactionState state : LocalTransactionState.values()) {
            transacting.sendMessageInTransaction(new Message(topic, "transaction", state.name().getBytes(StandardCharsets.UTF_8)), state);
        }
        Set<String> got = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer("kinds-transactions-read");
        consumer.subscribe(topic, "transaction");
        consumer.registerMessageListener(collecting(got));
        consumer.start();
        await(() -> got.size() >= 2);
        check("transactions", got.equals(Set.of("COMMIT_MESSAGE", "UNKNOW")) && checks.get() >= 1, got);
        consumer.shutdown();
        transacting.shutdown();
    }

    private static void lookups() throws Exception {
        Message message = new Message(topic, "looked-up", "the-key", "looked up".getBytes(StandardCharsets.UTF_8));
        SendResult result = producer.send(message);
        MessageExt found = producer.viewMessage(topic, result.getOffsetMsgId());
        check("by id", found != null && body(found).equals("looked up"), found);
        check("by key", await(() -> hasOne(topic, "the-key")), "");
    }

    private static void traces() throws Exception {
        DefaultMQProducer traced = new DefaultMQProducer("kinds-traced", true, null);
        traced.setNamesrvAddr(nameServer);
        traced.start();
        String id = traced.send(new Message(topic, "traced", "traced".getBytes(StandardCharsets.UTF_8))).getMsgId();
        check("traces", await(() -> hasOne("RMQ_SYS_TRACE_TOPIC", id)), id);
        traced.shutdown();
    }

    private static void filters() throws Exception {
        for (int number = 0; number < 6; number++) {
            Message message = new Message(topic, "filtered", Integer.toString(number).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("number", Integer.toString(number));
            producer.send(message);
        }
        Set<String> got = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer("kinds-sql");
        consumer.subscribe(topic, MessageSelector.bySql("number > 3 AND TAGS = 'filtered'"));
        consumer.registerMessageListener(collecting(got));
        consumer.start();
        await(() -> got.size() >= 2);
        check("sql", got.equals(Set.of("4", "5")), got);
        consumer.shutdown();
    }

    private static void litePull() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("kinds-lite-pull");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "batch || odd");
        consumer.start();
        AtomicInteger count = new AtomicInteger();
        await(() -> count.addAndGet(consumer.poll(500).size()) >= 42);
        check("lite pull", count.get() == 42, count);
        consumer.shutdown();
    }

    private static Message message(String tag, String body, Set<String> sent) {
        sent.add(body);
        return new Message(topic, tag, body.getBytes(StandardCharsets.UTF_8));
    }

    private static DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static MessageListenerConcurrently collecting(Set<String> got) {
        return (messages, context) -> {
            messages.forEach(message -> got.add(body(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    private static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    /** Whether it is done in time. */
    private static boolean await(java.util.function.BooleanSupplier done) throws Exception {
        long end = System.currentTimeMillis() + 60_000;
        while (!done.getAsBoolean()) {
            if (System.currentTimeMillis() > end) {
                return false;
            }
            Thread.sleep(50);
        }
        return true;
    }

    private static boolean hasOne(String inTopic, String key) {
        try {
            return producer.queryMessage(inTopic, key, 10, 0, System.currentTimeMillis() + 1000).getMessageList().size() == 1;
        } catch (Exception error) {
            return false;
        }
    }

    private static void check(String name, boolean good, Object detail) {
        System.out.println((good ? "ok " : "bad ") + name + (good ? "" : " " + detail));
    }
}
