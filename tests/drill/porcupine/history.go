package main

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Record is one line of a history, with the data of the kinds that matter here.
type Record struct {
	Kind     string `json:"kind"`
	Invoked  int64  `json:"invoked_ns"`
	Returned *int64 `json:"returned_ns"`
	Outcome  string `json:"outcome"`
	Data     struct {
		Topic       string   `json:"topic"`
		Group       string   `json:"group"`
		Queue       int      `json:"queue"`
		Offset      int      `json:"offset"`
		Value       string   `json:"value"`
		Idempotent  bool     `json:"idempotent"`
		Attempts    int      `json:"attempts"`
		End         string   `json:"end"`
		Mode        string   `json:"mode"`
		FromOffset  int      `json:"from_offset"`
		FirstOffset int      `json:"first_offset"`
		Values      []string `json:"values"`
	} `json:"data"`
}

// end is when the operation was over for certain.
func (record Record) end() int64 {
	if record.Returned == nil {
		return math.MaxInt64
	}
	return *record.Returned
}

func (record Record) log() Log { return Log{record.Data.Topic, record.Data.Group, record.Data.Queue} }

// Log is one queue.
type Log struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
	Queue int    `json:"queue"`
}

// ReadHistory reads all files below a folder as one history, or a single file.
func ReadHistory(name string) ([]Record, error) {
	about, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !about.IsDir() {
		return readFile(name, nil)
	}
	var history []Record
	err = filepath.WalkDir(name, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !(strings.HasSuffix(file, ".jsonl") || strings.HasSuffix(file, ".jsonl.gz")) {
			return err
		}
		if history, err = readFile(file, history); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		return nil
	})
	if err == nil && history == nil {
		err = errors.New("no history in this folder")
	}
	return history, err
}

// readFile adds what is in a file of JSON lines, compressed where its name ends in .gz.  The last line may be cut off.
func readFile(name string, history []Record) ([]Record, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var stream io.Reader = bufio.NewReader(file)
	if strings.HasSuffix(name, ".gz") {
		if stream, err = gzip.NewReader(stream); err == io.EOF {
			return history, nil // nothing was written yet
		} else if err != nil {
			return nil, err
		}
	}
	for decoder := json.NewDecoder(stream); ; {
		var record Record
		if err := decoder.Decode(&record); err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return history, nil
		} else if err != nil {
			return nil, err
		}
		history = append(history, record)
	}
}

// Partition makes the operations on each queue of what clients saw.
func Partition(history []Record) map[Log][]porcupine.Operation {
	audits, places := audit(history)
	addRead(history, audits, places)
	logs := map[Log][]porcupine.Operation{}
	add := func(log Log, call, end int64, input, output interface{}) {
		logs[log] = append(logs[log], porcupine.Operation{Input: input, Call: call, Output: output, Return: end})
	}
	for _, record := range history {
		data := record.Data
		switch log := record.log(); record.Kind {
		case "send":
			acknowledged := record.Outcome == "ok"
			if acknowledged {
				add(log, record.Invoked, record.end(), appendInput{data.Value}, data.Offset)
			}
			addStored(record, log, acknowledged, places, add)
		case "delayed", "transaction":
			addStored(record, log, false, places, add)
		case "read":
			if record.Outcome == "ok" && data.Mode == "linearizable" {
				add(log, record.Invoked, record.end(), readInput{data.FromOffset}, data.Values)
			}
		}
	}
	for log, whole := range audits {
		add(log, whole.at, math.MaxInt64, readInput{whole.first}, whole.values)
	}
	return logs
}

// addRead finds the places of messages in queues that nobody audited, as far as reads saw them.
func addRead(history []Record, audits map[Log]*content, places map[string][]place) {
	known := map[place]bool{}
	for _, record := range history {
		if record.Kind != "read" || record.Outcome != "ok" || audits[record.log()] != nil {
			continue
		}
		for at, value := range record.Data.Values {
			found := place{record.log(), record.Data.FromOffset + at}
			if !known[found] {
				known[found] = true
				places[found.log.Topic+"\n"+value] = append(places[found.log.Topic+"\n"+value], found)
			}
		}
	}
}

type place struct {
	log    Log
	offset int
}

// addStored adds the appends that nobody acknowledged and the audit found: one for a message that is stored once, more where a producer
// without an identity had to try again.  What the audit did not find never took effect.
func addStored(record Record, told Log, acknowledged bool, places map[string][]place, add func(Log, int64, int64, interface{}, interface{})) {
	data := record.Data
	rolledBack := record.Kind == "transaction" && data.End != "commit"
	if record.Outcome == "failed" || rolledBack {
		return
	}
	wanted := 1
	atFirstTry := record.Outcome == "ok" && data.Attempts == 1
	if record.Kind != "transaction" && !data.Idempotent && !atFirstTry {
		wanted = math.MaxInt
	}
	if acknowledged {
		wanted--
	}
	for _, found := range places[data.Topic+"\n"+data.Value] {
		if wanted == 0 {
			return
		}
		if acknowledged && found.log == told && found.offset == data.Offset {
			continue
		}
		add(found.log, record.Invoked, math.MaxInt64, appendInput{data.Value}, found.offset)
		wanted--
	}
}

// content is a queue as the audit found it.
type content struct {
	at     int64
	first  int
	values []string
}

// audit joins the runs of each queue.  Offsets that no run has hold nothing that was ever sent.
func audit(history []Record) (map[Log]*content, map[string][]place) {
	runs := map[Log][]Record{}
	for _, record := range history {
		if record.Kind == "stored" {
			runs[record.log()] = append(runs[record.log()], record)
		}
	}
	audits, places := map[Log]*content{}, map[string][]place{}
	for log, of := range runs {
		sort.SliceStable(of, func(one, other int) bool { return of[one].Data.FirstOffset < of[other].Data.FirstOffset })
		whole := &content{first: of[0].Data.FirstOffset}
		for _, run := range of {
			if run.Invoked > whole.at {
				whole.at = run.Invoked
			}
			for whole.first+len(whole.values) < run.Data.FirstOffset {
				whole.values = append(whole.values, "")
			}
			for at, value := range run.Data.Values {
				if offset := run.Data.FirstOffset + at; offset == whole.first+len(whole.values) {
					whole.values = append(whole.values, value)
					places[log.Topic+"\n"+value] = append(places[log.Topic+"\n"+value], place{log, offset})
				}
			}
		}
		audits[log] = whole
	}
	return audits, places
}
