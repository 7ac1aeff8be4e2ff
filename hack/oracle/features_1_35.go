//go:build kubernetes_1_35

package main

import (
	"errors"

	"k8s.io/dynamic-resource-allocation/structured"
)

// features are those of a 1.35 cluster with default feature gates.
var features = structured.Features{
	AdminAccess:     true,
	PrioritizedList: true,
}

// failsOnNode tells whether other nodes may still work.
func failsOnNode(err error) bool { return errors.Is(err, structured.ErrFailedAllocationOnNode) }

// readMetadata fails: 1.35 has no device metadata.
func readMetadata(string) (any, string, error) { return nil, "", errors.ErrUnsupported }
