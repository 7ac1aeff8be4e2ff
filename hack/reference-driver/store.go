package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const cdiKind = "k8s." + driverName + "/claim"

// store keeps what is prepared in the files that our driver keeps, in the same form. Like ours it believes nothing that
// it read before the lock: two drivers may share the folder during a rolling update.
type store struct {
	data, cdiRoot, dev, bootID string
	flush                      bool // before the reply
}

type preparedDevice struct {
	Request   string         `json:"request"`
	Pool      string         `json:"pool"`
	Device    string         `json:"device"`
	DeviceIDs []int          `json:"deviceIds"`
	CDIIDs    []string       `json:"cdiIds"`
	Edits     map[string]any `json:"edits"`
}

type preparedClaim struct {
	Namespace  string           `json:"namespace"`
	Name       string           `json:"name"`
	PreparedAt string           `json:"preparedAt"`
	Pod        string           `json:"pod,omitempty"`
	Devices    []preparedDevice `json:"devices"`
}

func (c *preparedClaim) answer() []kubeletplugin.Device {
	if c == nil {
		return nil
	}
	var devices []kubeletplugin.Device
	for _, device := range c.Devices {
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{device.Request}, PoolName: device.Pool, DeviceName: device.Device,
			CDIDeviceIDs: device.CDIIDs,
		})
	}
	return devices
}

// checkpoint is all prepared claims of one boot. Checksum is SHA-256 over the JSON of the rest.
type checkpoint struct {
	Checksum string                       `json:"checksum,omitempty"`
	BootID   string                       `json:"bootId"`
	Claims   map[types.UID]*preparedClaim `json:"claims"`
	Version  string                       `json:"version"`
}

func (c checkpoint) sum() (string, error) {
	c.Checksum = ""
	raw, err := json.Marshal(c)
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), err
}

func (s store) checkpointPath() string { return filepath.Join(s.data, "checkpoint.json") }

func (s store) specPath(uid types.UID) string {
	return filepath.Join(s.cdiRoot, strings.ReplaceAll(cdiKind, "/", "-")+"_"+string(uid)+".json")
}

func (s store) read() (checkpoint, error) {
	empty := checkpoint{BootID: s.bootID, Claims: map[types.UID]*preparedClaim{}, Version: "v1"}
	raw, err := os.ReadFile(s.checkpointPath())
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return empty, err
	}
	var found checkpoint
	if err := json.Unmarshal(raw, &found); err != nil {
		return empty, err
	}
	if sum, err := found.sum(); err != nil || sum != found.Checksum {
		return empty, errors.Join(err, errors.New("the checkpoint's checksum is wrong"))
	}
	if found.BootID != s.bootID {
		return empty, nil
	}
	return found, nil
}

func (s store) write(c checkpoint) error {
	var err error
	if c.Checksum, err = c.sum(); err != nil {
		return err
	}
	return s.replace(s.checkpointPath(), c, 0o600, s.checkpointPath()+".bak")
}

func (s store) prepare(claim *resourceapi.ResourceClaim) (*preparedClaim, error) {
	current, err := s.read()
	if err != nil {
		return nil, err
	}
	if known, ok := current.Claims[claim.UID]; ok {
		return known, nil
	}
	prepared, err := s.decide(claim, current.Claims)
	if err != nil {
		return nil, err
	}
	if err := s.replace(s.specPath(claim.UID), spec(claim.UID, prepared), 0o644, ""); err != nil {
		return nil, err
	}
	current.Claims[claim.UID] = prepared
	if err := s.write(current); err != nil {
		return nil, err
	}
	return prepared, nil
}

func (s store) unprepare(uid types.UID) error {
	current, err := s.read()
	if err != nil {
		return err
	}
	if _, ok := current.Claims[uid]; ok {
		delete(current.Claims, uid)
		if err := s.write(current); err != nil {
			return err
		}
	}
	if err := os.Remove(s.specPath(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// decide gives a claim its devices, none of which may be another claim's.
func (s store) decide(claim *resourceapi.ResourceClaim, others map[types.UID]*preparedClaim) (*preparedClaim, error) {
	if claim.Status.Allocation == nil {
		return nil, fmt.Errorf("claim %s/%s is not allocated", claim.Namespace, claim.Name)
	}
	held := map[int]string{}
	for _, other := range others {
		for _, device := range other.Devices {
			for _, id := range device.DeviceIDs {
				held[id] = other.Namespace + "/" + other.Name
			}
		}
	}
	prepared := &preparedClaim{
		Namespace: claim.Namespace, Name: claim.Name, PreparedAt: time.Now().UTC().Format(time.RFC3339),
	}
	for _, user := range claim.Status.ReservedFor {
		if user.Resource == "pods" {
			prepared.Pod = user.Name
			break
		}
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driverName {
			continue
		}
		var id int
		if _, err := fmt.Sscanf(result.Device, "neuron-device-%d", &id); err != nil {
			return nil, fmt.Errorf("device %s: %w", result.Device, err)
		}
		if holder, ok := held[id]; ok {
			return nil, fmt.Errorf("device %s is held by claim %s", result.Device, holder)
		}
		prepared.Devices = append(prepared.Devices, preparedDevice{
			Request: result.Request, Pool: result.Pool, Device: result.Device, DeviceIDs: []int{id},
			CDIIDs: []string{cdiKind + "=" + string(claim.UID) + "-" + result.Device},
			Edits:  map[string]any{"deviceNodes": []any{s.deviceNode(id)}},
		})
	}
	return prepared, nil
}

func (s store) deviceNode(id int) map[string]any {
	node := map[string]any{"path": fmt.Sprintf("/dev/neuron%d", id)}
	if s.dev != "/dev" {
		node["hostPath"] = fmt.Sprintf("%s/neuron%d", s.dev, id)
	}
	return node
}

func spec(uid types.UID, claim *preparedClaim) map[string]any {
	var devices []any
	for _, device := range claim.Devices {
		devices = append(devices, map[string]any{"name": string(uid) + "-" + device.Device, "containerEdits": device.Edits})
	}
	return map[string]any{
		"cdiVersion": "0.6.0", "kind": cdiKind, "devices": devices,
		"annotations": map[string]any{
			driverName + "/claim-namespace": claim.Namespace, driverName + "/claim-name": claim.Name,
			driverName + "/claim-uid": uid,
		},
	}
}

// replace writes a file so that a crash leaves the old one or the new one; with flush, so does a power cut. The old one
// stays as keep, if that is a name.
func (s store) replace(path string, value any, mode os.FileMode, keep string) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err = file.Write(raw); err != nil {
		return err
	}
	if s.flush {
		if err = file.Sync(); err != nil {
			return err
		}
	}
	if keep != "" {
		if err = keepAs(path, keep); err != nil {
			return err
		}
	}
	if err = os.Rename(temporary, path); err != nil {
		return err
	}
	if !s.flush {
		return nil
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

// keepAs gives a file a second name, in place of what had that name. No file is no error.
func keepAs(path, keep string) error {
	spare := keep + ".tmp"
	if err := os.Remove(spare); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(path, spare); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return os.Rename(spare, keep)
}
