// Command bench-peer is a DRA driver on Kubernetes' own helper, with the same work on disk as ours: a CDI file and a
// checkpoint, each written, flushed and renamed. `make bench` compares the two.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const driverName = "neuron.aws.com"

type driver struct {
	folder string
	mu     sync.Mutex
	claims map[types.UID][]kubeletplugin.Device
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	if known, ok := d.claims[claim.UID]; ok {
		return known, nil
	}
	if claim.Status.Allocation == nil {
		return nil, fmt.Errorf("claim %s/%s is not allocated", claim.Namespace, claim.Name)
	}
	var devices []kubeletplugin.Device
	var specs []map[string]any
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driverName {
			continue
		}
		name := string(claim.UID) + "-" + result.Device
		specs = append(specs, map[string]any{
			"name":           name,
			"containerEdits": map[string]any{"deviceNodes": []any{map[string]any{"path": "/dev/" + result.Device}}},
		})
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device,
			CDIDeviceIDs: []string{"k8s.neuron.aws.com/claim=" + name},
		})
	}
	spec := map[string]any{"cdiVersion": "0.6.0", "kind": "k8s.neuron.aws.com/claim", "devices": specs}
	if err := store(filepath.Join(d.folder, string(claim.UID)+".json"), spec); err != nil {
		return nil, err
	}
	d.claims[claim.UID] = devices
	if err := store(filepath.Join(d.folder, "checkpoint"), d.claims); err != nil {
		delete(d.claims, claim.UID)
		return nil, err
	}
	return devices, nil
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	results := map[types.UID]error{}
	for _, claim := range claims {
		delete(d.claims, claim.UID)
		err := store(filepath.Join(d.folder, "checkpoint"), d.claims)
		if err == nil {
			err = os.RemoveAll(filepath.Join(d.folder, string(claim.UID)+".json"))
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (d *driver) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintln(os.Stderr, message, err)
}

// store replaces a file so that a crash leaves the old one or the new one.
func store(path string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err = file.Write(raw); err != nil {
		return err
	}
	if err = file.Sync(); err != nil {
		return err
	}
	if err = os.Rename(path+".tmp", path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

func main() {
	url := flag.String("url", "", "API server")
	node := flag.String("node", "n1", "node name")
	root := flag.String("root", "", "folder for sockets and files")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: *url, QPS: 1000, Burst: 1000})
	if err != nil {
		panic(err)
	}
	helper, err := kubeletplugin.Start(ctx, &driver{folder: *root, claims: map[types.UID][]kubeletplugin.Device{}},
		kubeletplugin.KubeClient(client), kubeletplugin.NodeName(*node), kubeletplugin.DriverName(driverName),
		kubeletplugin.RegistrarDirectoryPath(*root), kubeletplugin.PluginDataDirectoryPath(*root))
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	<-ctx.Done()
	helper.Stop()
}
