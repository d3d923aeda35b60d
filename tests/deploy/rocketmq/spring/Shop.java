package shop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Service;

/** What rocketmq-spring's template and listeners do, one after the other.  A line for each: "ok NAME" or "bad NAME DETAIL". */
@SpringBootApplication
public class Shop {
    private static final Set<String> received = ConcurrentHashMap.newKeySet();
    private static final List<String> inOrder = new ArrayList<>();
    private static final AtomicInteger checks = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        ConfigurableApplicationContext context = SpringApplication.run(Shop.class, arguments);
        run(context.getBean(RocketMQTemplate.class));
        context.close();
        System.exit(0);
    }

    private static void run(RocketMQTemplate template) throws Exception {
        check("sync", template.syncSend("orders:paid", "sync").getMsgId() != null && await("sync"));
        template.convertAndSend("orders:open", "of another tag");
        CountDownLatch answered = new CountDownLatch(1);
        template.asyncSend("orders:paid", "async", new SendCallback() {
            public void onSuccess(SendResult result) {
                answered.countDown();
            }

            public void onException(Throwable error) {
                System.out.println("bad async " + error);
            }
        });
        check("async", answered.await(20, TimeUnit.SECONDS) && await("async"));
        template.syncSend("orders:paid", Arrays.asList(of("batch0"), of("batch1")));
        check("batch", await("batch0") && await("batch1"));
        long sentMs = System.currentTimeMillis();
        template.syncSend("orders:paid", of("delayed"), 3000, 1);
        check("delayed", await("delayed") && System.currentTimeMillis() - sentMs >= 900);
        sentMs = System.currentTimeMillis();
        template.syncSendDelayTimeMills("orders:paid", "timed", 1500);
        check("timed", await("timed") && System.currentTimeMillis() - sentMs >= 1400);
        for (int number = 0; number < 20; number++) {
            template.syncSendOrderly("steps", "step" + number, "one key");
        }
        await("step19");
        List<String> wanted = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            wanted.add("step" + number);
        }
        synchronized (inOrder) {
            check("orderly", inOrder.equals(wanted));
        }
        for (String state : new String[] {"COMMIT", "ROLLBACK", "UNKNOWN"}) {
            template.sendMessageInTransaction("orders:paid", of(state), state);
        }
        check("transactions", await("COMMIT") && await("UNKNOWN") && checks.get() > 0 && !received.contains("ROLLBACK"));
        check("retry", template.syncSend("orders:paid", "twice").getMsgId() != null && await("twice, again"));
        check("tags", !received.contains("of another tag"));
    }

    private static Message<String> of(String payload) {
        return MessageBuilder.withPayload(payload).build();
    }

    private static boolean await(String payload) throws Exception {
        long end = System.currentTimeMillis() + 60_000;
        while (!received.contains(payload) && System.currentTimeMillis() < end) {
            Thread.sleep(20);
        }
        return received.contains(payload);
    }

    private static void check(String name, boolean good) {
        System.out.println((good ? "ok " : "bad ") + name + (good ? "" : " " + received));
    }

    @Service
    @RocketMQMessageListener(topic = "orders", consumerGroup = "shop", selectorExpression = "paid")
    public static class Orders implements RocketMQListener<String> {
        public void onMessage(String payload) {
            if (payload.equals("twice") && received.add("twice")) {
                throw new IllegalStateException("comes again");
            }
            received.add(payload.equals("twice") ? "twice, again" : payload);
        }
    }

    @Service
    @RocketMQMessageListener(topic = "steps", consumerGroup = "steps", consumeMode = ConsumeMode.ORDERLY)
    public static class Steps implements RocketMQListener<String> {
        public void onMessage(String payload) {
            synchronized (inOrder) {
                inOrder.add(payload);
            }
            received.add(payload);
        }
    }

    @RocketMQTransactionListener
    public static class Transactions implements RocketMQLocalTransactionListener {
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object state) {
            return RocketMQLocalTransactionState.valueOf((String) state);
        }

        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            checks.incrementAndGet();
            return RocketMQLocalTransactionState.COMMIT;
        }
    }
}
