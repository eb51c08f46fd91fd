// Package crds names the modules whose custom resources the chart makes.
package crds

import (
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	_ "sigs.k8s.io/gateway-api/apis/v1"
)
