//go:build kubernetes_1_34

package main

import (
	"errors"

	"k8s.io/dynamic-resource-allocation/structured"
)

// features are those of a 1.34 cluster with default feature gates.
var features = structured.Features{
	AdminAccess:     true,
	PrioritizedList: true,
}

// failsOnNode tells whether other nodes may still work: 1.34 has no such errors.
func failsOnNode(error) bool { return false }

// readMetadata fails: 1.34 has no device metadata.
func readMetadata(string) (any, string, error) { return nil, "", errors.ErrUnsupported }
