import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends numbered messages one after the other, and consumes them.  A line for each: "sent N", "failed N REASON", "got N QUEUE OFFSET".  N begins with
 * the last argument.
 *
 * Arguments: name server, topic, consumer group, how many messages, pause between them in ms, seconds to wait for all in the end, prefix
 * (a client of 4.9 notices only after 30 s that a node it waits for has died).
 */
public class Load {
    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments[0], topic = arguments[1], group = arguments[2];
        int messages = Integer.parseInt(arguments[3]), pauseMs = Integer.parseInt(arguments[4]), waitS = Integer.parseInt(arguments[5]);
        String prefix = arguments[6];
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Set<String> sent = ConcurrentHashMap.newKeySet(), got = ConcurrentHashMap.newKeySet();
        consumer.registerMessageListener((MessageListenerConcurrently) (received, context) -> {
            for (MessageExt message : received) {
                String number = new String(message.getBody(), StandardCharsets.UTF_8);
                got.add(number);
                say("got " + number + " " + message.getQueueId() + " " + message.getQueueOffset());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer(group + "-producer");
        producer.setNamesrvAddr(nameServer);
        producer.setPollNameServerInterval(1000);
        producer.start();
        for (int number = 0; number < messages; number++) {
            String body = prefix + number;
            try {
                SendResult result = producer.send(new Message(topic, "t", body, body.getBytes(StandardCharsets.UTF_8)));
                boolean isSent = result.getSendStatus() == SendStatus.SEND_OK;
                if (isSent) {
                    sent.add(body);
                }
                say((isSent ? "sent " : "failed ") + body);
            } catch (Exception error) {
                say("failed " + body + " " + error.getClass().getSimpleName());
            }
            Thread.sleep(pauseMs);
        }
        long end = System.currentTimeMillis() + waitS * 1000L;
        while (!got.containsAll(sent) && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        Thread.sleep(1000); // what comes twice comes soon
        producer.shutdown();
        consumer.shutdown();
        say("done");
        System.exit(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
