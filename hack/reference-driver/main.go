// Command reference-driver is a DRA driver on Kubernetes' own helper that does what ours does and nothing else: it
// publishes the same devices, and keeps the same CDI files and the same checkpoint. It flushes them before it replies;
// with -flush=false it leaves that out. `make bench` compares the two.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const driverName = "neuron.aws.com"

// driver answers the helper, which has read the claims and calls one method at a time, under a file lock.
type driver struct {
	store store
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		prepared, err := d.store.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: prepared.answer(), Err: err}
	}
	return results, nil
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.store.unprepare(claim.UID)
	}
	return results, nil
}

func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (d *driver) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, message, err)
}

// devices reads the devices to publish from a ResourceSlice that our driver published.
func devices(path string) ([]resourceapi.Device, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var slice resourceapi.ResourceSlice
	if err := json.Unmarshal(raw, &slice); err != nil {
		return nil, err
	}
	return slice.Spec.Devices, nil
}

func config(url, kubeconfig string) (*rest.Config, error) {
	// JSON, as our driver asks for: the embedded API server knows nothing else.
	if kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err == nil {
			config.ContentType = "application/json"
		}
		return config, err
	}
	return &rest.Config{Host: url, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, nil
}

func run() error {
	url := flag.String("url", "", "API server that wants no credentials")
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file, in place of -url")
	node := flag.String("node", "n1", "name of the Node object")
	registry := flag.String("registry", "/var/lib/kubelet/plugins_registry", "folder in which the kubelet looks for sockets")
	data := flag.String("data", "/var/lib/kubelet/plugins/"+driverName, "folder of the socket and the checkpoint")
	cdiRoot := flag.String("cdi-root", "/var/run/cdi", "folder of CDI specs")
	dev := flag.String("dev", "/dev", "folder of the device files, for the runtime")
	slice := flag.String("slice", "", "JSON file of a ResourceSlice with the devices to publish")
	flush := flag.Bool("flush", true, "flush each file and its folder before the reply")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	access, err := config(*url, *kubeconfig)
	if err != nil {
		return err
	}
	access.QPS, access.Burst = 1000, 1000
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	published, err := devices(*slice)
	if err != nil {
		return err
	}
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	for _, folder := range []string{*data, *cdiRoot} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	helper, err := kubeletplugin.Start(ctx, &driver{store{*data, *cdiRoot, *dev, string(bootID[:len(bootID)-1]), *flush}},
		kubeletplugin.KubeClient(client), kubeletplugin.NodeName(*node), kubeletplugin.DriverName(driverName),
		kubeletplugin.RegistrarDirectoryPath(*registry), kubeletplugin.PluginDataDirectoryPath(*data),
		kubeletplugin.FlockDirectoryPath(*data))
	if err != nil {
		return err
	}
	defer helper.Stop()
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: published}}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{*node: pool}}); err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
