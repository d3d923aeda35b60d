package main

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

const waiting = 60 * time.Second

var (
	producer   rocketmq.Producer
	background = context.Background()
	checked    = make(chan string, 16)
	ending     sync.WaitGroup
)

// kinds sends and consumes each kind of message, all at a time: "ok WHAT" or "bad WHAT WHY" a line.  The group in-order gets messages in
// order, the group dead has two attempts.
func kinds() {
	producer = newProducer(func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
		checked <- string(message.GetBody())
		return rocketmq.COMMIT
	})
	steps := []struct {
		name string
		run  func() error
	}{
		{"normal", normal}, {"async", async}, {"large", large}, {"fifo", fifo}, {"delayed", delayed}, {"priority", priority},
		{"transactions", transactions}, {"again", again}, {"sql", sql}, {"push", push}, {"order", order}, {"dead", dead},
	}
	failed := make([]error, len(steps))
	var running sync.WaitGroup
	for at, step := range steps {
		running.Add(1)
		go func() {
			defer running.Done()
			failed[at] = step.run()
		}()
	}
	running.Wait()
	for at, step := range steps {
		if failed[at] != nil {
			say("bad", step.name, failed[at])
		} else {
			say("ok", step.name)
		}
	}
	ending.Wait()
	must(producer.GracefulStop())
}

// end stops a push consumer, which waits for the long polls that it has.
func end(consumer rocketmq.PushConsumer) {
	ending.Add(1)
	go func() {
		defer ending.Done()
		must(consumer.GracefulStop())
	}()
}

func message(tag, body string) *rocketmq.Message {
	made := &rocketmq.Message{Topic: topic, Body: []byte(body)}
	made.SetTag(tag)
	return made
}

func send(made *rocketmq.Message) *rocketmq.SendReceipt {
	receipts, err := producer.Send(background, made)
	must(err)
	return receipts[0]
}

func same(found, wanted any) error {
	if !reflect.DeepEqual(found, wanted) {
		return fmt.Errorf("%v in place of %v", found, wanted)
	}
	return nil
}

// receives acknowledges messages of a filter until it has as many as bodies, and compares them.
func receives(tag string, filter *rocketmq.FilterExpression, bodies ...string) (found []*rocketmq.MessageView, err error) {
	consumer := simpleConsumer("g-"+tag, filter)
	defer consumer.GracefulStop()
	var texts []string
	err = until(waiting, func() bool {
		for _, each := range one(consumer, 16) {
			must(consumer.Ack(background, each))
			found, texts = append(found, each), append(texts, string(each.GetBody()))
		}
		return len(texts) >= len(bodies)
	})
	if err == nil {
		err = same(texts, bodies)
	}
	return found, err
}

// one polls once; that there is nothing is an error of this client.
func one(consumer rocketmq.SimpleConsumer, most int32) []*rocketmq.MessageView {
	found, _ := consumer.Receive(background, most, 15*time.Second)
	return found
}

func tagged(tag string) *rocketmq.FilterExpression {
	return rocketmq.NewFilterExpression(tag)
}

func normal() error {
	made := message("normal", "normal")
	made.SetKeys("k-1")
	made.AddProperty("amount", "42 €")
	receipt := send(made)
	found, err := receives("normal", tagged("normal"), "normal")
	if err != nil {
		return err
	}
	got := found[0]
	return same([]any{got.GetMessageId(), *got.GetTag(), got.GetKeys(), got.GetProperties()["amount"]},
		[]any{receipt.MessageID, "normal", []string{"k-1"}, "42 €"})
}

func async() error {
	answered := make(chan error, 1)
	producer.SendAsync(background, message("async", "async"), func(_ context.Context, _ []*rocketmq.SendReceipt, err error) { answered <- err })
	if err := <-answered; err != nil {
		return err
	}
	_, err := receives("async", tagged("async"), "async")
	return err
}

func large() error {
	body := strings.Repeat("x", 900_000)
	send(message("large", body))
	_, err := receives("large", tagged("large"), body)
	return err
}

func sendInOrder(tag, group string, bodies ...string) {
	for _, body := range bodies {
		made := message(tag, body)
		made.SetMessageGroup(group)
		send(made)
	}
}

func fifo() error {
	sendInOrder("fifo", "g", "f0", "f1", "f2")
	found, err := receives("fifo", tagged("fifo"), "f0", "f1", "f2")
	if err != nil {
		return err
	}
	return same(*found[0].GetMessageGroup(), "g")
}

func delayed() error {
	due := time.Now().Add(1500 * time.Millisecond)
	taken, kept := message("delayed", "recalled"), message("delayed", "delayed")
	taken.SetDelayTimestamp(due.Add(3 * time.Second))
	if _, err := producer.Recall(background, topic, send(taken).RecallHandle); err != nil {
		return err
	}
	kept.SetDelayTimestamp(due)
	send(kept)
	if _, err := receives("delayed", tagged("delayed"), "delayed"); err != nil {
		return err
	}
	if time.Now().Before(due.Add(-100 * time.Millisecond)) {
		return fmt.Errorf("too early")
	}
	time.Sleep(time.Until(due.Add(4500 * time.Millisecond)))
	consumer := simpleConsumer("g-delayed", tagged("delayed"))
	defer consumer.GracefulStop()
	return same(len(one(consumer, 16)), 0)
}

func priority() error {
	made := message("priority", "priority")
	must(made.SetPriority(2))
	send(made)
	_, err := receives("priority", tagged("priority"), "priority")
	return err
}

func transactions() error {
	half := func(tag, body string) rocketmq.Transaction {
		begun := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(background, message(tag, body), begun)
		must(err)
		return begun
	}
	must(half("half", "committed").Commit())
	must(half("half", "dropped").RollBack())
	if _, err := receives("half", tagged("half"), "committed"); err != nil {
		return err
	}
	half("half2", "checked")
	select {
	case body := <-checked:
		if err := same(body, "checked"); err != nil {
			return err
		}
	case <-time.After(waiting):
		return fmt.Errorf("not asked")
	}
	_, err := receives("half2", tagged("half2"), "checked")
	return err
}

func again() error {
	send(message("again", "again"))
	consumer := simpleConsumer("g-again", tagged("again"))
	defer consumer.GracefulStop()
	var found []*rocketmq.MessageView
	some := func() bool {
		found = one(consumer, 1)
		return len(found) == 1
	}
	if err := until(waiting, some); err != nil {
		return err
	}
	must(consumer.ChangeInvisibleDuration(found[0], 10*time.Second))
	if err := until(waiting, some); err != nil {
		return err
	}
	must(consumer.Ack(background, found[0]))
	return same(found[0].GetDeliveryAttempt(), int32(2))
}

func sql() error {
	for at := range 3 {
		made := message("sql", "n"+strconv.Itoa(at))
		made.AddProperty("n", strconv.Itoa(at))
		made.SetMessageGroup("sql")
		send(made)
	}
	_, err := receives("sql", rocketmq.NewFilterExpressionWithType("TAGS = 'sql' AND n > 0", rocketmq.SQL92), "n1", "n2")
	return err
}

// pushed consumes messages of a tag by a push consumer that refuses the first attempt of one body.
func pushed(group, tag, refused string, count int, sending func()) ([]string, error) {
	var lock sync.Mutex
	var got []string
	consumer := pushConsumer(group, tagged(tag), func(each *rocketmq.MessageView) rocketmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		body := string(each.GetBody())
		if body == refused && !slices.Contains(got, "refused") {
			got = append(got, "refused")
			return rocketmq.FAILURE
		}
		got = append(got, body)
		return rocketmq.SUCCESS
	})
	defer end(consumer)
	sending()
	err := until(waiting, func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(got) > count
	})
	lock.Lock()
	defer lock.Unlock()
	return got, err
}

func push() error {
	got, err := pushed("g-push", "push", "p1", 3, func() {
		for at := range 3 {
			send(message("push", "p"+strconv.Itoa(at)))
		}
	})
	if err != nil {
		return err
	}
	slices.Sort(got)
	return same(got, []string{"p0", "p1", "p2", "refused"})
}

func order() error {
	got, err := pushed("in-order", "order", "o0", 3, func() { sendInOrder("order", "o", "o0", "o1", "o2") })
	if err != nil {
		return err
	}
	return same(got, []string{"refused", "o0", "o1", "o2"})
}

func dead() error {
	attempts := make(chan int32, 16)
	consumer := pushConsumer("dead", tagged("dead"), func(each *rocketmq.MessageView) rocketmq.ConsumerResult {
		attempts <- each.GetDeliveryAttempt()
		return rocketmq.FAILURE
	})
	defer end(consumer)
	send(message("dead", "dead"))
	for _, wanted := range []int32{1, 2} {
		select {
		case found := <-attempts:
			if err := same(found, wanted); err != nil {
				return err
			}
		case <-time.After(waiting):
			return fmt.Errorf("no attempt %d", wanted)
		}
	}
	return nil
}
