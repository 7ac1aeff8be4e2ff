//go:build kubernetes_1_36

package main

import (
	"errors"

	"k8s.io/dynamic-resource-allocation/structured"
)

// features are those of a 1.36 cluster with default feature gates.
var features = structured.Features{
	AdminAccess:            true,
	ConsumableCapacity:     true,
	DeviceBindingAndStatus: true,
	DeviceTaints:           true,
	PartitionableDevices:   true,
	PrioritizedList:        true,
}

// failsOnNode tells whether other nodes may still work.
func failsOnNode(err error) bool { return errors.Is(err, structured.ErrFailedAllocationOnNode) }

// readMetadata fails: only the code of newer versions is asked about device metadata.
func readMetadata(string) (any, string, error) { return nil, "", errors.ErrUnsupported }
