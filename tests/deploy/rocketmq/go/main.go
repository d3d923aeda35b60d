// Programs of RocketMQ's Go client, version 2: "kinds" and "load", with the addresses of name servers behind them.
package main

import (
	"os"
	"strconv"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var nameServers primitive.NsResolver

func main() {
	rlog.SetLogLevel("fatal")
	nameServers = primitive.NewPassthroughResolver(strings.Split(os.Args[2], ";"))
	if os.Args[1] == "load" {
		load(os.Args[3:])
	} else {
		kinds(os.Args[3])
	}
}

func newProducer(group string, options ...producer.Option) rocketmq.Producer {
	made, err := rocketmq.NewProducer(append(options, producer.WithNsResolver(nameServers), producer.WithGroupName(group), producer.WithRetry(2))...)
	must(err)
	must(made.Start())
	return made
}

func pushConsumer(group string, options ...consumer.Option) rocketmq.PushConsumer {
	common := []consumer.Option{
		consumer.WithNsResolver(nameServers),
		consumer.WithGroupName(group),
		consumer.WithInstance(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
	made, err := rocketmq.NewPushConsumer(append(common, options...)...)
	must(err)
	return made
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	must(err)
	return found
}

func until(limit time.Duration, done func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if done() {
			return true
		}
	}
	return done()
}
