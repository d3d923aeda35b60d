package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// load sends numbered messages one after the other, and consumes them by a simple or a push consumer.  A line for each: "sent BODY",
// "failed BODY REASON", "got BODY QUEUE-OFFSET".  It ends when as many were sent as asked for, and all that were sent were received.
func load(kind, group string, messages, pauseMs int) {
	var lock sync.Mutex
	got, sent := map[string]bool{}, map[string]bool{}
	note := func(message *rocketmq.MessageView) {
		lock.Lock()
		got[string(message.GetBody())] = true
		lock.Unlock()
		say("got", string(message.GetBody()), message.GetOffset())
	}
	if kind == "push" {
		pushConsumer(group, rocketmq.SUB_ALL, func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
			note(message)
			return rocketmq.SUCCESS
		})
	} else {
		go polled(simpleConsumer(group, rocketmq.SUB_ALL), note)
	}
	sending := newProducer(nil)
	for at := 0; len(sent) < messages; at++ {
		body := "m" + strconv.Itoa(at)
		if _, err := sending.Send(context.Background(), &rocketmq.Message{Topic: topic, Body: []byte(body)}); err != nil {
			say("failed", body, fmt.Sprintf("%T", err))
			time.Sleep(time.Second)
		} else {
			sent[body] = true
			say("sent", body)
		}
		time.Sleep(time.Duration(pauseMs) * time.Millisecond)
	}
	must(until(120*time.Second, func() bool {
		lock.Lock()
		defer lock.Unlock()
		for body := range sent {
			if !got[body] {
				return false
			}
		}
		return true
	}))
}

func polled(consumer rocketmq.SimpleConsumer, note func(*rocketmq.MessageView)) {
	for {
		messages, err := consumer.Receive(context.Background(), 16, 15*time.Second)
		if err != nil {
			time.Sleep(100 * time.Millisecond)
		}
		for _, message := range messages {
			note(message)
			_ = consumer.Ack(context.Background(), message) // it may be stored although its answer is lost: what counts is what was received
		}
	}
}
