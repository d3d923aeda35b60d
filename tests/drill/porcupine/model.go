package main

import (
	"crypto/sha256"

	"github.com/anishathalye/porcupine"
)

// appendInput adds a value at the end of the log; readInput sees the log from an offset to its end.
type appendInput struct{ value string }
type readInput struct{ from int }

// logState is immutable: an append makes a new one in front of it.  The digest stands for all of its content.
type logState struct {
	length int
	digest [sha256.Size]byte
	last   string
	before *logState
}

func (state *logState) with(value string) *logState {
	content := append(append([]byte{}, state.digest[:]...), value...)
	return &logState{state.length + 1, sha256.Sum256(content), value, state}
}

// endsWith tells whether the last values of the log are these.
func (state *logState) endsWith(values []string) bool {
	for place := len(values) - 1; place >= 0; place-- {
		if state.length == 0 || state.last != values[place] {
			return false
		}
		state = state.before
	}
	return true
}

var logModel = porcupine.Model{
	Init: func() interface{} { return &logState{} },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		log := state.(*logState)
		switch in := input.(type) {
		case appendInput:
			return output.(int) == log.length, log.with(in.value)
		case readInput:
			values := output.([]string)
			return in.from+len(values) == log.length && log.endsWith(values), log
		}
		return false, log
	},
	Equal: func(one, other interface{}) bool {
		return one.(*logState).length == other.(*logState).length && one.(*logState).digest == other.(*logState).digest
	},
}
