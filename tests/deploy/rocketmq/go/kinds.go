package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const waiting = 60 * time.Second

var topic string

// kinds uses every kind of message and consumer, one after the other.  A line for each: "ok NAME" or "bad NAME DETAIL".
func kinds(name string) {
	topic = name
	sending := newProducer("kinds-producer")
	concurrently(send(sending))
	orderly()
	transactions()
	filters(sending)
	polled()
	pulled()
	must(sending.Shutdown())
}

func check(name string, good bool, detail any) {
	if good {
		say("ok", name)
	} else {
		say("bad", name, detail)
	}
}

func send(sending rocketmq.Producer) map[string]bool {
	sent := map[string]bool{}
	message := func(tag, body string) *primitive.Message {
		sent[body] = true
		return primitive.NewMessage(topic, []byte(body)).WithTag(tag)
	}
	background, good := context.Background(), true
	for at := range 20 {
		result, err := sending.SendSync(background, message([]string{"even", "odd"}[at%2], fmt.Sprint("sync", at)))
		good = good && err == nil && result.Status == primitive.SendOK
	}
	check("sync", good, "")
	var answered sync.WaitGroup
	var failed atomic.Int32
	for at := range 50 {
		answered.Add(1)
		must(sending.SendAsync(background, func(_ context.Context, _ *primitive.SendResult, err error) {
			if err != nil {
				failed.Add(1)
			}
			answered.Done()
		}, message("even", fmt.Sprint("async", at))))
	}
	answered.Wait()
	check("async", failed.Load() == 0, failed.Load())
	var batch []*primitive.Message
	for at := range 32 {
		batch = append(batch, message("batch", fmt.Sprint("batch", at)))
	}
	result, err := sending.SendSync(background, batch...)
	check("batch", err == nil && len(strings.Split(result.OffsetMsgID, ",")) == 32, err)
	must(sending.SendOneWay(background, message("even", "oneway")))
	_, err = sending.SendSync(background, message("even", strings.Repeat("x", 100_000)))
	check("compressed", err == nil, err)
	_, err = sending.SendSync(background, message("even", "delayed").WithDelayTimeLevel(1))
	check("delayed", err == nil, err)
	_, err = sending.SendSync(background, message("even", "timed").WithDelayTimestamp(time.Now().Add(time.Second)))
	check("timed", err == nil, err)
	return sent
}

// collected is what consumers got: how many times each body came.
type collected struct {
	lock  sync.Mutex
	times map[string]int
	order map[string][]string
}

func (got *collected) note(message *primitive.MessageExt) {
	got.lock.Lock()
	defer got.lock.Unlock()
	if got.times == nil {
		got.times, got.order = map[string]int{}, map[string][]string{}
	}
	got.times[string(message.Body)]++
	key := message.GetShardingKey()
	got.order[key] = append(got.order[key], string(message.Body))
}

func (got *collected) bodies() []string {
	got.lock.Lock()
	defer got.lock.Unlock()
	return slices.Sorted(maps.Keys(got.times))
}

func consume(group string, selector consumer.MessageSelector, got *collected, refuse func(*primitive.MessageExt) bool, options ...consumer.Option) rocketmq.PushConsumer {
	reading := pushConsumer(group, options...)
	must(reading.Subscribe(topic, selector, func(_ context.Context, received ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range received {
			if refuse != nil && refuse(message) {
				return consumer.ConsumeRetryLater, nil
			}
			got.note(message)
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(reading.Start())
	return reading
}

func concurrently(sent map[string]bool) {
	var got collected
	var refused atomic.Int32
	reading := consume("kinds-concurrently", consumer.MessageSelector{}, &got, func(message *primitive.MessageExt) bool {
		again := string(message.Body) == "sync7" && message.ReconsumeTimes == 0
		if again {
			refused.Add(1)
		}
		return again
	})
	all := slices.Sorted(maps.Keys(sent))
	found := until(waiting, func() bool { return slices.Equal(got.bodies(), all) })
	once := !slices.ContainsFunc(slices.Collect(maps.Values(got.times)), func(times int) bool { return times != 1 })
	check("concurrently", found && once, len(got.bodies()))
	check("retry", refused.Load() == 1 && got.times["sync7"] == 1, refused.Load())
	must(reading.Shutdown())
}

func orderly() {
	sending := newProducer("kinds-ordered", producer.WithInstanceName("ordered"), producer.WithQueueSelector(producer.NewHashQueueSelector()))
	expected := map[string][]string{}
	for at := range 60 {
		key, body := fmt.Sprint("key", at%3), fmt.Sprintf("%02d", at)
		expected[key] = append(expected[key], body)
		_, err := sending.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)).WithTag("ordered").WithShardingKey(key))
		must(err)
	}
	must(sending.Shutdown())
	var got collected
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "ordered"}
	reading := consume("kinds-orderly", selector, &got, nil, consumer.WithConsumerOrder(true))
	until(waiting, func() bool { return len(got.bodies()) == 60 })
	must(reading.Shutdown())
	check("orderly", maps.EqualFunc(got.order, expected, slices.Equal), got.order)
}

// decides is the listener of a transaction: the body says what becomes of it, "check" only when it is asked.
type decides struct{ checks atomic.Int32 }

func (listener *decides) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnkonwnState
}

func (listener *decides) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	listener.checks.Add(1)
	return primitive.CommitMessageState
}

func transactions() {
	listener := &decides{}
	sending, err := rocketmq.NewTransactionProducer(listener, producer.WithNsResolver(nameServers), producer.WithGroupName("kinds-transactions"),
		producer.WithInstanceName("transactions")) // a client is asked only about the first producer of its instance
	must(err)
	must(sending.Start())
	for _, body := range []string{"commit", "rollback", "check"} {
		_, err := sending.SendMessageInTransaction(context.Background(), primitive.NewMessage(topic, []byte(body)).WithTag("transaction"))
		must(err)
	}
	var got collected
	reading := consume("kinds-transactions-read", consumer.MessageSelector{Type: consumer.TAG, Expression: "transaction"}, &got, nil)
	expected := []string{"check", "commit"}
	found := until(waiting, func() bool { return slices.Equal(got.bodies(), expected) })
	check("transactions", found && listener.checks.Load() >= 1, got.bodies())
	must(reading.Shutdown())
	must(sending.Shutdown())
}

func filters(sending rocketmq.Producer) {
	for at := range 6 {
		message := primitive.NewMessage(topic, []byte(fmt.Sprint("filtered", at))).WithTag("filtered")
		message.WithProperty("number", fmt.Sprint(at))
		_, err := sending.SendSync(context.Background(), message)
		must(err)
	}
	var got collected
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "number > 3 AND TAGS = 'filtered'"}
	reading := consume("kinds-sql", selector, &got, nil)
	expected := []string{"filtered4", "filtered5"}
	check("sql", until(waiting, func() bool { return slices.Equal(got.bodies(), expected) }), got.bodies())
	must(reading.Shutdown())
}

func pullConsumer(group string) rocketmq.PullConsumer {
	made, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(nameServers), consumer.WithGroupName(group),
		consumer.WithInstance(group), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	return made
}

func polled() {
	reading := pullConsumer("kinds-poll")
	must(reading.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "batch || odd"}))
	must(reading.Start())
	count := 0
	until(waiting, func() bool {
		request, err := reading.Poll(context.Background(), time.Second)
		if err == nil {
			count += len(request.GetMsgList())
			reading.ACK(context.Background(), request, consumer.ConsumeSuccess)
		}
		return count >= 42
	})
	check("poll", count == 42, count)
	must(reading.Shutdown())
}

// pulled reads every queue by its offsets, without a group's members.
func pulled() {
	reading := pullConsumer("kinds-pull")
	must(reading.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	must(reading.Start())
	queues, err := reading.GetTopicRouteInfo(topic)
	must(err)
	count, ends := 0, int64(0)
	for _, queue := range queues {
		for offset, more := int64(0), true; more; {
			result, err := reading.PullFrom(context.Background(), queue, offset, 7)
			must(err)
			more = result.Status == primitive.PullFound
			count += len(result.GetMessageExts())
			offset = result.NextBeginOffset
		}
		last, err := reading.OffsetForTimestamp(queue, time.Now().Add(time.Hour).UnixMilli())
		must(err)
		ends += last
	}
	must(reading.Shutdown())
	check("pull", count == 20+50+32+4+60+2+6, count)
	check("offset by time", ends == int64(count), ends)
}
