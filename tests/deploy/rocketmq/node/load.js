// Sends numbered messages by RocketMQ's client for Node.js, one after the other, and consumes them.  A line for each: "sent BODY",
// "failed BODY REASON", "got BODY QUEUE-OFFSET".  It ends when as many were sent as asked for, and all that were sent were received.
// Arguments: simple or push, endpoint, topic, group, messages, pause in ms.
'use strict';

const { ConsumeResult, Producer, PushConsumer, SimpleConsumer, pause, say, silent, started, until } = require('./common');

const [ kind, endpoints, topic, group, messages, pauseMs ] = process.argv.slice(2);
const common = { endpoints, namespace: '', logger: silent };
const sent = new Set(), got = new Set();

function note(message) {
  got.add(message.body.toString());
  say('got', message.body, message.offset);
}

async function push() {
  const consume = async message => {
    note(message);
    return ConsumeResult.SUCCESS;
  };
  await started(new PushConsumer({ ...common, consumerGroup: group, subscriptions: new Map([[ topic, '*' ]]), messageListener: { consume } }));
}

async function simple() {
  const consumer = await started(new SimpleConsumer({ ...common, consumerGroup: group, subscriptions: new Map([[ topic, '*' ]]), awaitDuration: 2000 }));
  for (;;) {
    try {
      for (const message of await consumer.receive(16, 15_000)) {
        note(message);
        await consumer.ack(message); // it may be stored although its answer is lost: what counts is what was received
      }
    } catch {
      await pause(100);
    }
  }
}

async function send() {
  const producer = await started(new Producer({ ...common, topics: [ topic ] }));
  for (let number = 0; sent.size < Number(messages); number++) {
    const body = `m${number}`;
    try {
      await producer.send({ topic, tag: 't', body: Buffer.from(body) });
      sent.add(body);
      say('sent', body);
    } catch (error) {
      say('failed', body, error.constructor.name);
      await pause(1000); // routes are looked for every 30 s, which cannot be set
    }
    await pause(Number(pauseMs));
  }
}

async function main() {
  const consuming = kind === 'push' ? push() : simple();
  consuming.catch(error => {
    say('bad', error.stack.replaceAll('\n', ' '));
    process.exit(1);
  });
  await send();
  await until(() => [ ...sent ].every(body => got.has(body)), () => 'not all was consumed', 120_000);
  process.exit(0);
}

main();
