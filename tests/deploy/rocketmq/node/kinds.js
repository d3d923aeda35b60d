// Sends and consumes each kind of message by RocketMQ's client for Node.js, all at a time: "ok WHAT" or "bad WHAT WHY" a line.
// Arguments: endpoint, topic.  The group in-order gets messages in order, the group dead has two attempts.
'use strict';

const {
  ConsumeResult, FilterExpression, FilterType, Producer, PushConsumer, SimpleConsumer, TransactionResolution, say, silent, started, until,
} = require('./common');

const [ endpoints, topic ] = process.argv.slice(2);
const common = { endpoints, namespace: '', logger: silent };
const checked = [], ending = [];
let producer;

function send(tag, body, fields = {}, transaction = undefined) {
  return producer.send({ topic, tag, body: Buffer.from(body), ...fields }, transaction);
}

async function withSimple(group, filter, use) {
  const consumer = await started(new SimpleConsumer({ ...common, consumerGroup: group, subscriptions: new Map([[ topic, filter ]]), awaitDuration: 2000 }));
  try {
    await use(consumer);
  } finally {
    await consumer.shutdown();
  }
}

// Receives the messages of a filter, acknowledges them, and compares their bodies.
async function receives(tag, bodies, filter = tag, inspect = () => {}) {
  await withSimple(`g-${tag}`, filter, async consumer => {
    const found = [];
    await until(async () => {
      for (const message of await consumer.receive(16, 15_000)) {
        await consumer.ack(message);
        inspect(message);
        found.push(message.body.toString());
      }
      return found.length >= bodies.length;
    }, () => `only ${found}`);
    same(found, bodies);
  });
}

// Consumes the messages of a tag by a push consumer; the listener says what becomes of one.
async function pushes(group, tag, sending, listener, done, what) {
  const subscriptions = new Map([[ topic, tag ]]);
  const options = { ...common, consumerGroup: group, subscriptions, messageListener: { consume: async message => listener(message) } };
  const consumer = await started(new PushConsumer(options));
  await sending();
  await until(done, what);
  ending.push(consumer.shutdown()); // waits for the long polls that it has
}

function same(found, wanted) {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) {
    throw new Error(`${JSON.stringify(found)} in place of ${JSON.stringify(wanted)}`);
  }
}

const steps = {
  async normal() {
    const receipt = await send('normal', 'normal', { keys: [ 'k-1' ], properties: new Map([[ 'amount', '42 €' ]]) });
    await receives('normal', [ 'normal' ], 'normal', message => {
      same([ message.messageId, message.tag, message.keys, message.properties.get('amount') ], [ receipt.messageId, 'normal', [ 'k-1' ], '42 €' ]);
      same(Boolean(message.corrupted), false);
    });
  },
  async large() {
    await send('large', 'x'.repeat(900_000));
    await receives('large', [ 'x'.repeat(900_000) ]);
  },
  async fifo() {
    for (const body of [ 'f0', 'f1', 'f2' ]) {
      await send('fifo', body, { messageGroup: 'g' });
    }
    await receives('fifo', [ 'f0', 'f1', 'f2' ], 'fifo', message => same(message.messageGroup, 'g'));
  },
  async delayed() {
    const due = Date.now() + 1500;
    const recalled = await send('delayed', 'recalled', { deliveryTimestamp: new Date(due + 3000) });
    await producer.recallMessage(topic, recalled.recallHandle);
    await send('delayed', 'delayed', { deliveryTimestamp: new Date(due) });
    await receives('delayed', [ 'delayed' ]);
    same(Date.now() >= due - 100, true);
    await until(() => Date.now() > due + 4500, () => 'the time of the recalled one');
    await withSimple('g-delayed', 'delayed', async consumer => same((await consumer.receive(16, 15_000)).length, 0));
  },
  async priority() {
    await send('priority', 'priority', { priority: 2 });
    await receives('priority', [ 'priority' ], 'priority', message => same(message.priority, 2));
  },
  async transactions() {
    const [ committed, dropped, open ] = [ 0, 1, 2 ].map(() => producer.beginTransaction());
    await send('half', 'committed', {}, committed);
    await send('half', 'dropped', {}, dropped);
    await committed.commit();
    await dropped.rollback();
    await receives('half', [ 'committed' ]);
    await send('half2', 'checked', {}, open);
    await until(() => checked.includes('checked'), () => 'not asked');
    await receives('half2', [ 'checked' ]);
  },
  async again() {
    await send('again', 'again');
    await withSimple('g-again', 'again', async consumer => {
      let message;
      const one = async () => ([ message ] = await consumer.receive(1, 15_000)).length === 1;
      await until(one, () => 'no message');
      await consumer.changeInvisibleDuration(message, 10_000);
      await until(one, () => 'not again');
      same(message.deliveryAttempt, 2);
      await consumer.ack(message);
    });
  },
  async sql() {
    for (const number of [ 0, 1, 2 ]) {
      await send('sql', `n${number}`, { properties: new Map([[ 'n', `${number}` ]]), messageGroup: 'sql' });
    }
    await receives('sql', [ 'n1', 'n2' ], new FilterExpression('TAGS = \'sql\' AND n > 0', FilterType.SQL));
  },
  async push() {
    const got = [], refused = [];
    const listener = message => {
      const body = message.body.toString();
      if (body === 'p1' && !refused.length) {
        refused.push(body);
        return ConsumeResult.FAILURE;
      }
      got.push(body);
      return ConsumeResult.SUCCESS;
    };
    const sending = () => Promise.all([ 'p0', 'p1', 'p2' ].map(body => send('push', body)));
    await pushes('g-push', 'push', sending, listener, () => got.length >= 3, () => `${got}`);
    same([ got.sort(), refused ], [[ 'p0', 'p1', 'p2' ], [ 'p1' ]]);
  },
  async order() {
    const got = [], refused = [];
    const listener = message => {
      const body = message.body.toString();
      if (body === 'o0' && !refused.length) {
        refused.push(body);
        return ConsumeResult.FAILURE;
      }
      got.push(body);
      return ConsumeResult.SUCCESS;
    };
    const sending = async () => {
      for (const body of [ 'o0', 'o1', 'o2' ]) {
        await send('order', body, { messageGroup: 'o' });
      }
    };
    await pushes('in-order', 'order', sending, listener, () => got.length >= 3, () => `${got}`);
    same([ got, refused ], [[ 'o0', 'o1', 'o2' ], [ 'o0' ]]);
  },
  async dead() {
    const attempts = [];
    const listener = message => {
      attempts.push(message.deliveryAttempt);
      return ConsumeResult.FAILURE;
    };
    await pushes('dead', 'dead', () => send('dead', 'dead'), listener, () => attempts.length >= 2, () => `${attempts}`);
    same(attempts, [ 1, 2 ]);
  },
};

async function main() {
  const check = async message => {
    checked.push(message.body.toString());
    return TransactionResolution.COMMIT;
  };
  producer = await started(new Producer({ ...common, topics: [ topic ], checker: { check } }));
  const done = Object.entries(steps).map(([ name, step ]) => step().then(() => `ok ${name}`, error => `bad ${name} ${error.stack.replaceAll('\n', ' ')}`));
  (await Promise.all(done)).forEach(line => say(line));
  await Promise.all([ ...ending, producer.shutdown() ]);
  process.exit(0);
}

main();
