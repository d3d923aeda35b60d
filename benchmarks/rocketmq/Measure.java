import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * RocketMQ's client under measurement, the same for every system.  A line for each figure: "NAME VALUE".
 *
 * Arguments: "rates", name servers, topic, messages, seconds of warm-up; or "failover", name servers, topic, seconds.  The latter sends one message
 * after the other, tries each again until it is stored, prints "acknowledged NUMBER BEGAN ENDED" (wall-clock ms), and then reads all back.
 */
public class Measure {
    private static final int BODY_BYTES = 1024, BATCH = 32, THREADS = 64, IN_FLIGHT = 1000, TIMEOUT_MS = 10_000;
    private static final long READ_LIMIT_MS = 120_000;
    private static final Random RANDOM = new Random(7);

    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Exception error) {  // the client's threads would keep the process
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("measure");
        producer.setNamesrvAddr(arguments[1]);
        producer.setPollNameServerInterval(1000);
        producer.start();
        String topic = arguments[2];
        if (arguments[0].equals("rates")) {
            rates(producer, topic, Integer.parseInt(arguments[3]), Double.parseDouble(arguments[4]));
            consume(arguments[1], topic, Integer.parseInt(arguments[3]));
        } else {
            failover(producer, topic, Double.parseDouble(arguments[3]));
            readBack(arguments[1], topic);
        }
    }

    private static Message message(String topic) {
        byte[] body = new byte[BODY_BYTES];
        RANDOM.nextBytes(body);
        return new Message(topic, body);
    }

    private static void rates(DefaultMQProducer producer, String topic, int messages, double warmS) throws Exception {
        long until = System.nanoTime() + (long) (warmS * 1e9);
        while (System.nanoTime() < until) {
            batch(producer, topic);
            producer.send(message(topic));
        }
        one(producer, topic, messages / 20);
        threads(producer, topic, messages);
        async(producer, topic, messages);
        long began = System.nanoTime();
        for (int sent = 0; sent < messages; sent += BATCH) {
            batch(producer, topic);
        }
        say("batches", messages / seconds(began));
    }

    private static void one(DefaultMQProducer producer, String topic, int messages) throws Exception {
        long[] took = new long[messages];
        long began = System.nanoTime();
        for (int number = 0; number < messages; number++) {
            Message message = message(topic);
            long since = System.nanoTime();
            producer.send(message);
            took[number] = System.nanoTime() - since;
        }
        say("one", messages / seconds(began));
        Arrays.sort(took);
        say("one_p50_ms", took[messages / 2] / 1e6);
        say("one_p99_ms", took[messages * 99 / 100] / 1e6);
    }

    private static void threads(DefaultMQProducer producer, String topic, int messages) throws Exception {
        AtomicInteger left = new AtomicInteger(messages), failed = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(THREADS);
        long began = System.nanoTime();
        for (int number = 0; number < THREADS; number++) {
            new Thread(() -> {
                while (left.getAndDecrement() > 0) {
                    try {
                        producer.send(new Message(topic, new byte[BODY_BYTES]));
                    } catch (Exception error) {
                        failed.incrementAndGet();
                    }
                }
                done.countDown();
            }).start();
        }
        done.await();
        say("threads", (messages - failed.get()) / seconds(began));
        say("threads_failed", failed.get());
    }

    private static void async(DefaultMQProducer producer, String topic, int messages) throws Exception {
        Semaphore room = new Semaphore(IN_FLIGHT);
        AtomicInteger failed = new AtomicInteger();
        SendCallback callback = new SendCallback() {
            public void onSuccess(SendResult result) {
                room.release();
            }

            public void onException(Throwable error) {
                failed.incrementAndGet();
                room.release();
            }
        };
        long began = System.nanoTime();
        for (int number = 0; number < messages; number++) {
            room.acquire();
            producer.send(message(topic), callback, TIMEOUT_MS);
        }
        room.acquire(IN_FLIGHT);
        say("async", (messages - failed.get()) / seconds(began));
        say("async_failed", failed.get());
    }

    private static void batch(DefaultMQProducer producer, String topic) throws Exception {
        List<Message> messages = new ArrayList<>();
        while (messages.size() < BATCH) {
            messages.add(message(topic));
        }
        producer.send(messages);
    }

    private static DefaultMQPushConsumer consumer(String nameServers, String topic, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("measure-readers");
        consumer.setNamesrvAddr(nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    /** From the first message that arrives to the last of those that the loads have sent. */
    private static void consume(String nameServers, String topic, int messages) throws Exception {
        AtomicLong first = new AtomicLong(), got = new AtomicLong(), last = new AtomicLong();
        consumer(nameServers, topic, (received, context) -> {
            first.compareAndSet(0, System.nanoTime());
            if (got.addAndGet(received.size()) <= 2L * messages) {
                last.set(System.nanoTime());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long until = System.currentTimeMillis() + READ_LIMIT_MS;
        while (got.get() < 2L * messages && System.currentTimeMillis() < until) {
            Thread.sleep(10);
        }
        say("consume", Math.min(got.get(), 2L * messages) * 1e9 / (last.get() - first.get()));
    }

    private static void failover(DefaultMQProducer producer, String topic, double lastsS) throws Exception {
        long until = System.nanoTime() + (long) (lastsS * 1e9);
        for (int number = 0; System.nanoTime() < until; number++) {
            Message message = new Message(topic, Integer.toString(number).getBytes());  // keeps its id however often it is sent
            for (boolean isStored = false; !isStored && System.nanoTime() < until;) {
                long began = System.currentTimeMillis();
                try {
                    isStored = producer.send(message).getSendStatus() == SendStatus.SEND_OK;
                } catch (Exception error) {
                    Thread.sleep(1);
                }
                if (isStored) {
                    System.out.println("acknowledged " + number + " " + began + " " + System.currentTimeMillis());
                }
            }
        }
    }

    private static void readBack(String nameServers, String topic) throws Exception {
        Set<String> places = ConcurrentHashMap.newKeySet();
        AtomicLong latest = new AtomicLong(System.currentTimeMillis());
        consumer(nameServers, topic, (received, context) -> {
            received.forEach(message -> {
                if (places.add(message.getQueueId() + " " + message.getQueueOffset())) {
                    System.out.println("read " + new String(message.getBody()));
                }
            });
            latest.set(System.currentTimeMillis());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        while (System.currentTimeMillis() < latest.get() + 10_000) {
            Thread.sleep(100);
        }
    }

    private static double seconds(long began) {
        return (System.nanoTime() - began) / 1e9;
    }

    private static void say(String name, double value) {
        System.out.println(name + " " + value);
    }
}
