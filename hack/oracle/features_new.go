//go:build !kubernetes_1_34

package main

import (
	"errors"

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
