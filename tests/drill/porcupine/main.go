// Command porcupine judges histories of a drill by a linearizability checker that is not ours.
//
//	porcupine [-timeout DURATION] HISTORY...
//
// A history is a file of JSON lines, or a folder of such files.  Each queue of it is an append-only log: sends append to it, linearizable
// reads and the final audit see all of it from an offset on.  Prints one line of JSON a history; exits with 1 when one is not
// linearizable, with 3 when a search ran out of time.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verdict is what is printed of one history.
type Verdict struct {
	File       string `json:"file"`
	Operations int    `json:"operations"`
	Illegal    []Log  `json:"illegal"`
	Undecided  []Log  `json:"undecided"`
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "longest search for one queue")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "porcupine: no history named")
		os.Exit(2)
	}
	status := 0
	for _, name := range flag.Args() {
		history, err := ReadHistory(name)
		if err != nil {
			fmt.Fprintf(os.Stderr, "porcupine: %s: %v\n", name, err)
			os.Exit(2)
		}
		verdict := judge(name, history, *timeout)
		if verdict.Operations == 0 {
			fmt.Fprintf(os.Stderr, "porcupine: %s: no operation on a queue\n", name)
			os.Exit(2)
		}
		if err := json.NewEncoder(os.Stdout).Encode(verdict); err != nil {
			fmt.Fprintf(os.Stderr, "porcupine: %v\n", err)
			os.Exit(2)
		}
		if len(verdict.Illegal) > 0 {
			status = 1
		} else if len(verdict.Undecided) > 0 && status == 0 {
			status = 3
		}
	}
	os.Exit(status)
}

func judge(name string, history []Record, timeout time.Duration) Verdict {
	verdict := Verdict{File: name, Illegal: []Log{}, Undecided: []Log{}}
	for log, operations := range Partition(history) {
		verdict.Operations += len(operations)
		switch porcupine.CheckOperationsTimeout(logModel, operations, timeout) {
		case porcupine.Illegal:
			verdict.Illegal = append(verdict.Illegal, log)
		case porcupine.Unknown:
			verdict.Undecided = append(verdict.Undecided, log)
		}
	}
	return verdict
}
