// Programs of RocketMQ's Go client that speaks gRPC: "kinds ENDPOINTS TOPIC", and "load KIND ENDPOINTS TOPIC GROUP MESSAGES PAUSE-MS".
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	endpoints, topic string
	saying           sync.Mutex
)

func main() {
	must(os.Setenv("rocketmq.client.logRoot", os.TempDir()))
	must(os.Setenv("rocketmq.client.logLevel", "error"))
	rocketmq.ResetLogger()
	rocketmq.EnableSsl = false
	if os.Args[1] == "load" {
		endpoints, topic = os.Args[3], os.Args[4]
		load(os.Args[2], os.Args[5], number(os.Args[6]), number(os.Args[7]))
	} else {
		endpoints, topic = os.Args[2], os.Args[3]
		kinds()
	}
	os.Exit(0)
}

func config(group string) *rocketmq.Config {
	return &rocketmq.Config{Endpoint: endpoints, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func newProducer(check func(*rocketmq.MessageView) rocketmq.TransactionResolution) rocketmq.Producer {
	made, err := rocketmq.NewProducer(config(""), rocketmq.WithTopics(topic), rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: check}))
	must(err)
	must(made.Start())
	return made
}

func simpleConsumer(group string, filter *rocketmq.FilterExpression) rocketmq.SimpleConsumer {
	made, err := rocketmq.NewSimpleConsumer(config(group),
		rocketmq.WithSimpleAwaitDuration(2*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: filter}))
	must(err)
	must(made.Start())
	return made
}

func pushConsumer(group string, filter *rocketmq.FilterExpression, listen func(*rocketmq.MessageView) rocketmq.ConsumerResult) rocketmq.PushConsumer {
	made, err := rocketmq.NewPushConsumer(config(group),
		rocketmq.WithPushAwaitDuration(2*time.Second),
		rocketmq.WithPushSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: filter}),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: listen}))
	must(err)
	must(made.Start())
	return made
}

func say(words ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Fprintln(os.Stdout, words...)
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

func until(limit time.Duration, done func() bool) error {
	for end := time.Now().Add(limit); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("not within %s", limit)
		}
	}
	return nil
}
