// A program of RocketMQ's Go client, version 2.  Arguments: the addresses of name servers, and a topic.
package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
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
	nameServers = primitive.NewPassthroughResolver(strings.Split(os.Args[1], ";"))
	kinds(os.Args[2])
}

var saying sync.Mutex

func say(words ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Fprintln(os.Stdout, words...)
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

func until(limit time.Duration, done func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if done() {
			return true
		}
	}
	return done()
}
