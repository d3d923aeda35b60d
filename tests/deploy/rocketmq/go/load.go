package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var saying sync.Mutex

func say(words ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Fprintln(os.Stdout, words...)
}

// load sends numbered messages one after the other, and consumes them.  A line for each: "sent N", "failed N REASON", "got N QUEUE OFFSET".
// Arguments are those of Load.java.
func load(arguments []string) {
	topic, group, prefix := arguments[0], arguments[1], arguments[5]
	messages, pauseMs, waitS := number(arguments[2]), number(arguments[3]), number(arguments[4])
	var lock sync.Mutex
	got, sent := map[string]bool{}, map[string]bool{}
	reading := pushConsumer(group)
	must(reading.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, received ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range received {
			lock.Lock()
			got[string(message.Body)] = true
			lock.Unlock()
			say("got", string(message.Body), message.Queue.QueueId, message.QueueOffset)
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(reading.Start())
	sending := newProducer(group + "-producer")
	for at := 0; at < messages; at++ {
		body := prefix + strconv.Itoa(at)
		result, err := sending.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)).WithTag("t"))
		switch {
		case err != nil:
			say("failed", body, fmt.Sprintf("%T", err))
		case result.Status != primitive.SendOK:
			say("failed", body, result.Status)
		default:
			sent[body] = true
			say("sent", body)
		}
		if !sent[body] {
			time.Sleep(time.Second) // routes are looked for every 30 s, which cannot be set
		}
		time.Sleep(time.Duration(pauseMs) * time.Millisecond)
	}
	until(time.Duration(waitS)*time.Second, func() bool {
		lock.Lock()
		defer lock.Unlock()
		for body := range sent {
			if !got[body] {
				return false
			}
		}
		return true
	})
	time.Sleep(time.Second) // what comes twice comes soon
	must(sending.Shutdown())
	must(reading.Shutdown())
	say("done")
}
