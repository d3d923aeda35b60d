import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/**
 * Sends messages for later and recalls the first of them, by methods that 4.9.8 does not have.  A line for each: "recalled ID of ID", "code N" for one
 * that was due already.
 *
 * Arguments: name server, topic.
 */
public class Recall {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("recalling");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        try {
            run(producer, arguments[1]);
        } finally {
            producer.shutdown();
        }
    }

    private static void run(DefaultMQProducer producer, String topic) throws Exception {
        SendResult first = send(producer, topic, "recalled", 5000), second = send(producer, topic, "kept", 1000);
        System.out.println("recalled " + recall(producer, topic, first) + " of " + first.getMsgId());
        Thread.sleep(3000);
        try {
            System.out.println("bad " + recall(producer, topic, second));
        } catch (java.lang.reflect.InvocationTargetException error) {
            System.out.println("code " + ((MQBrokerException) error.getCause()).getResponseCode());
        }
    }

    private static SendResult send(DefaultMQProducer producer, String topic, String body, long delayMs) throws Exception {
        Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
        MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", Long.toString(System.currentTimeMillis() + delayMs));
        return producer.send(message);
    }

    private static Object recall(DefaultMQProducer producer, String topic, SendResult sent) throws Exception {
        Object handle = SendResult.class.getMethod("getRecallHandle").invoke(sent);
        return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class).invoke(producer, topic, handle);
    }
}
