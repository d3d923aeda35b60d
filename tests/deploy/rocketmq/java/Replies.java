import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Asks numbered questions, in turn waiting for the reply and with a callback, which a consumer answers.  A line for each: "answered N", "timeout N",
 * "failed N REASON", or "wrong N REPLY" for the reply to another question.
 *
 * Arguments: name server, topic, how many questions, pause between them in ms.
 */
public class Replies {
    private static final long TIMEOUT_MS = 3000;

    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments[0], topic = arguments[1];
        DefaultMQProducer replying = producer("repliers", nameServer), asking = producer("askers", nameServer);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("answering");
        consumer.setNamesrvAddr(nameServer);
        consumer.setPollNameServerInterval(1000);
        consumer.setPullThresholdForQueue(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] reply = ("re " + body(message)).getBytes(StandardCharsets.UTF_8);
                    replying.send(MessageUtil.createReplyMessage(message, reply), 3000);
                } catch (Exception error) {
                    say("unreplied " + body(message) + " " + error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Message first = new Message(topic, "", "first".getBytes(StandardCharsets.UTF_8));
        asking.request(first, 60_000); // until the consumer has its queues
        say("begins");
        for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
            String question = Integer.toString(number);
            Message message = new Message(topic, "", question.getBytes(StandardCharsets.UTF_8));
            try {
                say(what(question, number % 2 == 0 ? (MessageExt) asking.request(message, TIMEOUT_MS) : called(asking, message)));
            } catch (RequestTimeoutException error) {
                say("timeout " + question);
            } catch (Exception error) {
                say("failed " + question + " " + error);
            }
            Thread.sleep(Integer.parseInt(arguments[3]));
        }
        System.exit(0);
    }

    private static MessageExt called(DefaultMQProducer asking, Message message) throws Exception {
        AtomicReference<Message> reply = new AtomicReference<>();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        CountDownLatch done = new CountDownLatch(1);
        asking.request(message, new RequestCallback() {
            public void onSuccess(Message received) {
                if (received != null) { // 4.9.8 calls it with nothing once the request is sent
                    reply.set(received);
                    done.countDown();
                }
            }

            public void onException(Throwable error) {
                failure.set(error);
                done.countDown();
            }
        }, TIMEOUT_MS);
        if (!done.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no callback came");
        }
        if (failure.get() != null) {
            throw (Exception) failure.get();
        }
        return (MessageExt) reply.get();
    }

    private static String what(String question, MessageExt reply) {
        return (body(reply).equals("re " + question) ? "answered " : "wrong ") + question + " " + body(reply);
    }

    private static DefaultMQProducer producer(String group, String nameServer) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setInstanceName(group);
        producer.setNamesrvAddr(nameServer);
        producer.setPollNameServerInterval(1000);
        producer.start();
        return producer;
    }

    private static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
