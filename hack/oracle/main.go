// oracle answers, line by line, what Kubernetes' own code says: its structured allocator and its CEL selectors.
//
// Input, one JSON object per line, either a case for the allocator
//
//	{"slices": [...], "claims": [...], "classes": [...], "node": {...}, "inUse": [{"driver","pool","device"}, ...]}
//
// or one for a selector
//
//	{"expression": "...", "device": {"driver": "...", "attributes": {...}, "capacity": {...}}}
//
// or a device metadata file
//
//	{"metadata": "..."}
//
// A case without slices has those of the case before, and its classes and node; with "timed" the answer has the
// allocator's time in "nanoseconds".
//
// Output, one JSON object per line: {"allocations": [...]} (null when there is no solution) or {"matches": true}
// or {"metadata": {...}, "version": "..."}, with "error" and "kind" (compile, node, pod) when the code returned an error, and the allocator's "steps".
//
// Built with -tags kubernetes_1_34 -modfile go_1_34.mod it is the code of Kubernetes 1.34, and so for 1.35.
// Built with -tags kubernetes_1_36 it is that of a release of 1.36 (judge.py).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

const (
	maxLine = 64 << 20
	timeout = 10 * time.Second // as the scheduler's filter
)

type question struct {
	Slices  []*resourceapi.ResourceSlice `json:"slices"`
	Claims  []*resourceapi.ResourceClaim `json:"claims"`
	Classes classes                      `json:"classes"`
	Node    *corev1.Node                 `json:"node"`
	InUse   []deviceID                   `json:"inUse"`
	Timed   bool                         `json:"timed"`

	Expression string      `json:"expression"`
	Device     *deviceView `json:"device"`

	Metadata string `json:"metadata"`
}

type deviceID struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

type deviceView struct {
	Driver     string                                                    `json:"driver"`
	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
}

type answer struct {
	Allocations []resourceapi.AllocationResult `json:"allocations,omitempty"`
	Matches     *bool                          `json:"matches,omitempty"`
	Metadata    any                            `json:"metadata,omitempty"`
	Version     string                         `json:"version,omitempty"`
	Kind        string                         `json:"kind,omitempty"`
	Error       string                         `json:"error,omitempty"`
	Nanoseconds int64                          `json:"nanoseconds,omitempty"`
	Steps       int64                          `json:"steps,omitempty"`
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("deviceclass.resource.k8s.io %q not found", name)
}

var celFeatures = cel.Features{EnableConsumableCapacity: true}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), maxLine)
	out := json.NewEncoder(os.Stdout)
	cache := cel.NewCache(1000, celFeatures)
	var last question
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, "oracle: not a question:", err)
			os.Exit(1)
		}
		if asked.Slices == nil {
			asked.Slices, asked.Classes, asked.Node = last.Slices, last.Classes, last.Node
		}
		last = asked
		began := time.Now()
		found := reply(&asked, cache)
		if asked.Timed {
			found.Nanoseconds = time.Since(began).Nanoseconds()
		}
		if err := out.Encode(found); err != nil {
			fmt.Fprintln(os.Stderr, "oracle:", err)
			os.Exit(1)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

func reply(asked *question, cache *cel.Cache) answer {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if asked.Device != nil {
		return evaluate(ctx, asked)
	}
	if asked.Metadata != "" {
		found, version, err := readMetadata(asked.Metadata)
		if err != nil {
			return answer{Error: err.Error()}
		}
		return answer{Metadata: found, Version: version}
	}
	inUse := sets.New[structured.DeviceID]()
	for _, id := range asked.InUse {
		inUse.Insert(structured.MakeDeviceID(id.Driver, id.Pool, id.Device))
	}
	state := structured.AllocatedState{
		AllocatedDevices:         inUse,
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	allocator, err := structured.NewAllocator(ctx, features, state, asked.Classes, asked.Slices, cache)
	if err != nil {
		return answer{Kind: "pod", Error: err.Error()}
	}
	allocations, err := allocator.Allocate(ctx, asked.Node, asked.Claims)
	steps := stepsOf(allocator)
	switch {
	case err == nil:
		return answer{Allocations: allocations, Steps: steps}
	case failsOnNode(err):
		return answer{Kind: "node", Error: err.Error(), Steps: steps}
	default:
		return answer{Kind: "pod", Error: err.Error(), Steps: steps}
	}
}

// stepsOf returns how often an allocator called allocateOne; the type of its statistics is internal.
func stepsOf(allocator structured.Allocator) int64 {
	stats := reflect.ValueOf(allocator).MethodByName("GetStats")
	if !stats.IsValid() {
		return 0
	}
	return stats.Call(nil)[0].FieldByName("NumAllocateOneInvocations").Int()
}

func evaluate(ctx context.Context, asked *question) answer {
	compiled := cel.GetCompiler(celFeatures).CompileCELExpression(asked.Expression, cel.Options{DisableCostEstimation: true})
	if compiled.Error != nil {
		return answer{Kind: "compile", Error: compiled.Error.Error()}
	}
	view := cel.Device{Driver: asked.Device.Driver, Attributes: asked.Device.Attributes, Capacity: asked.Device.Capacity}
	matches, _, err := compiled.DeviceMatches(ctx, view)
	if err != nil {
		return answer{Kind: "pod", Error: err.Error()}
	}
	return answer{Matches: &matches}
}
