// scheduler answers, line by line, what Kubernetes' own scheduler does with the pods of a small cluster.
//
// It is the scheduler of kube-scheduler, with all its plugins and default feature gates, on a client in memory. Each
// question is a cluster of its own, and no API server, controller or kubelet runs beside it. Only the time in which it
// searches a node is longer, so that the answer does not depend on what else the machine does.
//
// Input, one JSON object per line: {"objects": [...]}, as kubectl prints them. Objects of kinds that Kubernetes itself
// does not have are left out, and so is what pods that wait say of earlier attempts.
//
// Output, one JSON object per line, in the order of the questions: {"pods": {"NAMESPACE/NAME": {"node": "..."}}} with
// each pod that has no node: its node, or the "message" of the attempt, or "gate", the plugin that keeps it from the
// queue; a pod of another scheduler is not in it. "claims" are the claims that it has written, by namespace and name.
// With "error" the question could not be asked.
//
// The arguments are feature gates, such as GenericWorkload=true.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
)

const (
	maxLine   = 64 << 20
	atOnce    = 4
	search    = 60 * time.Second // 10 s by default
	deadline  = 4 * search
	pollEvery = time.Millisecond
	ofSystem  = "default-scheduler"
)

type question struct {
	Objects []json.RawMessage `json:"objects"`
}

type decision struct {
	Node    string `json:"node,omitempty"`
	Message string `json:"message,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Gate    string `json:"gate,omitempty"`
}

type answer struct {
	Pods   map[string]decision                   `json:"pods,omitempty"`
	Claims map[string]*resourceapi.ResourceClaim `json:"claims,omitempty"`
	Error  string                                `json:"error,omitempty"`
}

func main() {
	for _, gate := range os.Args[1:] {
		if err := utilfeature.DefaultMutableFeatureGate.Set(gate); err != nil {
			fail(err)
		}
	}
	quiet()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), maxLine)
	replies := make(chan chan answer, atOnce)
	go func() {
		defer close(replies)
		for lines.Scan() {
			reply := make(chan answer, 1)
			line := append([]byte(nil), lines.Bytes()...)
			replies <- reply
			go func() { reply <- asked(line) }()
		}
	}()
	out := json.NewEncoder(os.Stdout)
	for reply := range replies {
		if err := out.Encode(<-reply); err != nil {
			fail(err)
		}
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "scheduler:", err)
	os.Exit(1)
}

// quiet keeps the scheduler's log from standard error.
func quiet() {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	_ = flags.Set("logtostderr", "false")
	_ = flags.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
}

func asked(line []byte) answer {
	var about question
	if err := json.Unmarshal(line, &about); err != nil {
		return answer{Error: err.Error()}
	}
	objects, waiting, err := decoded(about.Objects)
	if err != nil {
		return answer{Error: err.Error()}
	}
	found, err := schedule(objects, waiting)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Pods: found.pods, Claims: found.claims}
}

// decoded returns the objects, and of them the pods without a node.
func decoded(raw []json.RawMessage) ([]runtime.Object, []*corev1.Pod, error) {
	var objects []runtime.Object
	var waiting []*corev1.Pod
	for number, each := range raw {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(each, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		about, err := meta.Accessor(object)
		if err != nil {
			return nil, nil, err
		}
		about.SetResourceVersion("1")
		if about.GetUID() == "" {
			about.SetUID(types.UID(fmt.Sprintf("uid-of-object-%d", number)))
		}
		if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName == "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			defaults(pod)
			waiting = append(waiting, pod)
		}
		objects = append(objects, object)
	}
	return objects, waiting, nil
}

// defaults sets what the API server sets in a new pod, and removes what an attempt has set.
func defaults(pod *corev1.Pod) {
	pod.Status.Conditions = nil
	if pod.Spec.SchedulerName == "" {
		pod.Spec.SchedulerName = ofSystem
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for index := range containers {
			resources := &containers[index].Resources
			for name, amount := range resources.Limits {
				if resources.Requests == nil {
					resources.Requests = corev1.ResourceList{}
				}
				if _, ok := resources.Requests[name]; !ok {
					resources.Requests[name] = amount
				}
			}
		}
	}
}

// seen is what the scheduler has written.
type seen struct {
	sync.Mutex
	pods   map[string]decision
	claims map[string]*resourceapi.ResourceClaim
}

func (s *seen) put(namespace, name string, found decision) {
	s.Lock()
	defer s.Unlock()
	key := namespace + "/" + name
	if s.pods[key].Node == "" {
		s.pods[key] = found
	}
}

func (s *seen) has(pod *corev1.Pod) bool {
	s.Lock()
	defer s.Unlock()
	_, ok := s.pods[pod.Namespace+"/"+pod.Name]
	return ok
}

func schedule(objects []runtime.Object, waiting []*corev1.Pod) (*seen, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	found := &seen{pods: map[string]decision{}, claims: map[string]*resourceapi.ResourceClaim{}}
	client := clientOf(objects, found)
	factory := informers.NewSharedInformerFactory(client, 0)
	recorder := events.NewFakeRecorder(1 << 12)
	profiles, err := patient()
	if err != nil {
		return nil, err
	}
	record := func(string) events.EventRecorderLogger { return recorder }
	made, err := scheduler.New(ctx, client, factory, nil, record, scheduler.WithProfiles(profiles...))
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if err := made.WaitForHandlersSync(ctx); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		made.Run(ctx)
	}()
	for _, pod := range waiting {
		for pod.Spec.SchedulerName == ofSystem && pod.DeletionTimestamp == nil && !found.has(pod) {
			if queued, ok := made.SchedulingQueue.(*queue.PriorityQueue).GetPod(pod.Name, pod.Namespace, pod.Spec.SchedulingGroup); ok && queued.GatingPlugin != "" {
				found.put(pod.Namespace, pod.Name, decision{Gate: queued.GatingPlugin})
				break
			}
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("pod %s/%s is not decided after %s", pod.Namespace, pod.Name, deadline)
			case <-time.After(pollEvery):
			}
		}
	}
	cancel()
	<-ended
	return found, nil
}

// patient returns the default profile with more time to search a node.
func patient() ([]config.KubeSchedulerProfile, error) {
	var defaulted configv1.KubeSchedulerConfiguration
	configscheme.Scheme.Default(&defaulted)
	var made config.KubeSchedulerConfiguration
	if err := configscheme.Scheme.Convert(&defaulted, &made, nil); err != nil {
		return nil, err
	}
	for _, profile := range made.Profiles {
		for _, plugin := range profile.PluginConfig {
			if arguments, ok := plugin.Args.(*config.DynamicResourcesArgs); ok {
				arguments.FilterTimeout = &metav1.Duration{Duration: search}
			}
		}
	}
	return made.Profiles, nil
}

// clientOf returns a client with these objects that notes nodes and conditions of pods as the scheduler writes them.
func clientOf(objects []runtime.Object, found *seen) *fake.Clientset {
	client := fake.NewSimpleClientset(objects...)
	var version atomic.Int64
	version.Store(1)
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		written, ok := action.(clienttesting.CreateAction) // an update has the same methods
		if !ok {
			return false, nil, nil
		}
		if about, err := meta.Accessor(written.GetObject()); err == nil {
			number := strconv.FormatInt(version.Add(1), 10)
			about.SetResourceVersion(number)
			if about.GetName() == "" {
				about.SetName(about.GetGenerateName() + number)
			}
			if about.GetUID() == "" {
				about.SetUID(types.UID("uid-" + number))
			}
		}
		if claim, ok := written.GetObject().(*resourceapi.ResourceClaim); ok {
			found.Lock()
			defer found.Unlock()
			found.claims[claim.Namespace+"/"+claim.Name] = claim.DeepCopy()
		}
		return false, nil, nil
	})
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "binding" {
			return false, nil, nil
		}
		binding := action.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		found.put(action.GetNamespace(), binding.Name, decision{Node: binding.Target.Name})
		return true, binding, nil
	})
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		var changed corev1.Pod
		if err := json.Unmarshal(patch.GetPatch(), &changed); err != nil {
			return false, nil, nil
		}
		for _, each := range changed.Status.Conditions {
			if each.Type == corev1.PodScheduled && each.Status == corev1.ConditionFalse {
				message := strings.TrimSpace(each.Message)
				found.put(action.GetNamespace(), patch.GetName(), decision{Message: message, Reason: each.Reason})
			}
		}
		return false, nil, nil
	})
	return client
}
