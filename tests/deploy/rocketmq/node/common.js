// What the programs of RocketMQ's client for Node.js share.
'use strict';

const rocketmq = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const silent = { info() {}, warn() {}, error() {}, debug() {} };

function say(...words) {
  process.stdout.write(`${words.join(' ')}\n`);
}

function pause(milliseconds) {
  return new Promise(resolve => setTimeout(resolve, milliseconds));
}

async function until(condition, what, limitMs = 60_000) {
  for (const end = Date.now() + limitMs; !await condition();) {
    if (Date.now() > end) {
      throw new Error(what());
    }
    await pause(50);
  }
}

async function started(client) {
  await client.startup();
  return client;
}

module.exports = { ...rocketmq, FilterType, TransactionResolution, silent, say, pause, until, started };
