// kube-scheduler with the delay plugin in it: a PreFilter that finds a pod unschedulable before
// its time, as the out-of-tree plugin does.
package main

import (
	"context"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/cli"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
)

const name = "Delay"

type plugin struct{}

func (plugin) Name() string { return name }

func (plugin) PreFilter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	seconds, err := strconv.ParseInt(pod.Annotations["delay"], 10, 64)
	if err != nil {
		return nil, nil
	}
	due := pod.CreationTimestamp.Add(time.Duration(seconds) * time.Second)
	if time.Now().Before(due) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "delayed")
	}
	return nil, nil
}

func (plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func newPlugin(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return plugin{}, nil
}

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(name, newPlugin))))
}
