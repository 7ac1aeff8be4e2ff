//go:build !kubernetes_1_34 && !kubernetes_1_35 && !kubernetes_1_36

package main

import (
	"encoding/json"
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
	"k8s.io/dynamic-resource-allocation/structured"
)

// features are those of a 1.37 cluster with default feature gates.
var features = structured.Features{
	AdminAccess:             true,
	ConsumableCapacity:      true,
	DeviceBindingAndStatus:  true,
	DeviceTaints:            true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true,
	PrioritizedList:         true,
}

// failsOnNode tells whether other nodes may still work.
func failsOnNode(err error) bool { return errors.Is(err, structured.ErrFailedAllocationOnNode) }

// readMetadata decodes and validates a device metadata file as Kubernetes' library for containers does.
func readMetadata(file string) (any, string, error) {
	var found v1beta1.DeviceMetadata
	var version schema.GroupVersionKind
	var invalid error
	err := devicemetadata.DecodeMetadataFromStream(json.NewDecoder(strings.NewReader(file)), &found,
		devicemetadata.DecodeMetadataStoreGVKResult(&version), devicemetadata.DecodeMetadataWithValidationResult(&invalid))
	return found, version.GroupVersion().String(), errors.Join(err, invalid)
}
