import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Clients that sign: "sent", or "refused CODE"; then "got BODY" of a message that a consumer received, or "nothing".
 * Arguments: name servers, the topic, access key and secret of the producer, those of the consumer ("-" for one that does not sign).
 */
public class Signed {
    private static final int MESSAGES = 10;

    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments[0];
        String topic = arguments[1];
        DefaultMQProducer producer = new DefaultMQProducer("signed-producer", hook(arguments[2], arguments[3]));
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("producer");
        producer.start();
        for (int number = 0; number < MESSAGES; number++) {
            System.out.println(send(producer, topic, "body" + number));
        }
        producer.shutdown();
        CountDownLatch received = new CountDownLatch(MESSAGES);
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer("readers", hook(arguments[4], arguments[5]), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> {
                System.out.println("got " + new String(message.getBody(), StandardCharsets.UTF_8));
                received.countDown();
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!received.await(arguments[5].equals("wrong") ? 5 : 60, TimeUnit.SECONDS)) {
            System.out.println("nothing");
        }
        System.exit(0);
    }

    private static String send(DefaultMQProducer producer, String topic, String body) throws Exception {
        try {
            producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)));
            return "sent";
        } catch (MQBrokerException error) {
            return "refused " + error.getResponseCode();
        } catch (MQClientException error) {
            Throwable cause = error.getCause();
            return "refused " + (cause instanceof MQBrokerException ? ((MQBrokerException) cause).getResponseCode() : error.getResponseCode());
        }
    }

    private static RPCHook hook(String key, String secret) {
        return key.equals("-") ? null : new AclClientRPCHook(new SessionCredentials(key, secret));
    }
}
