"""Wrong types, old names, and what is not exported."""

import dledger_client
from dledger_client import (
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SendResult,
)

producer = Producer("127.0.0.1:10911", linger_ms="3")  # error: arg-type / reportArgumentType
producer.send("orders")  # error: arg-type / reportArgumentType
Message("orders", "text")  # error: arg-type / reportArgumentType
result: SendResult = producer.send_async(Message("orders", b""))  # error: assignment / reportAssignmentType
body: str = PullConsumer("127.0.0.1:10911").fetch("t", 0, 0)[0].body  # error: assignment / reportAssignmentType
PullConsumer("127.0.0.1:10911").fetch("t", 0, 0, group_name="g0")  # error: call-arg / reportCallIssue
PullConsumer("127.0.0.1:10911", network=None)  # error: call-arg / reportCallIssue
PushConsumer("127.0.0.1:10911", "g", orderly="yes")  # error: arg-type / reportArgumentType
PushConsumer("127.0.0.1:10911", "g", listener=lambda messages: None)  # error: arg-type,misc / reportArgumentType
dledger_client.Router("127.0.0.1:10911")  # error: attr-defined / reportAttributeAccessIssue
